"""A small network of TabPFN's architecture with random weights, for tests that need a file."""

from unittest import mock

import torch


def write_weights(path, seed=0):
    """Write a checkpoint that ``tabpfn`` loads: 2 layers of width 16, 50 bars, random weights."""
    from twostagegp.pipeline.mean.tabpfn import library

    library()
    from tabpfn.model.loading import load_model
    from tabpfn.model.transformer import PerFeatureTransformer

    config = {
        "adaptive_max_seq_len_to_max_full_table_size": 75000,
        "aggregate_k_gradients": 1,
        "attention_init_gain": 1.0,
        "batch_size": 8,
        "emsize": 16,
        "features_per_group": 2,
        "max_num_classes": 0,
        "max_num_features": 85,
        "nhead": 2,
        "nlayers": 2,
        "num_buckets": 50,
        "remove_duplicate_features": False,
        "seq_len": 2000,
        "task_type": "regression",
    }
    bars = {
        "criterion.borders": torch.linspace(-4.0, 4.0, 51),
        "criterion.losses_per_bucket": torch.zeros(50),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": dict(bars), "config": config}, path)
    with mock.patch.object(PerFeatureTransformer, "load_state_dict"):
        network, _, _ = load_model(path=path, model_seed=0)
    generator = torch.Generator().manual_seed(seed)
    state = {
        key: 0.3 * torch.randn(value.shape, generator=generator)
        for key, value in network.state_dict().items()
    }
    torch.save({"state_dict": state | bars, "config": config}, path)
    return path
