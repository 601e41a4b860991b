"""Every table and figure of the paper by one command."""

import pytest

from experiments import __main__ as program


def test_every_experiment_is_listed(capsys):
    assert program.main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in program.EXPERIMENTS)


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["table9"])
    assert "table9" in capsys.readouterr().err


def test_all_goes_on_after_a_failure_and_returns_the_worst(capsys):
    asked = []

    def ending_with(status):
        return lambda arguments: asked.append(arguments) or status

    experiments = {"poor": ending_with(2), "bad": ending_with(1), "good": ending_with(0)}
    assert program.main(["all", "--quick"], experiments) == 2
    assert asked == [["--quick"]] * 3
    out = capsys.readouterr().out
    assert "no data" in out
    assert "some fits failed" in out
