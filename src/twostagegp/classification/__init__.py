"""Classification as K latent regressions: the parts behind ``TwoStageGPClassifier``."""
