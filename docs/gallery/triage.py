"""Classes: calibration of the probabilities, and error rate against share of decided rows."""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from twostagegp import TwoStageGPClassifier


def draw():
    """Draw the reliability diagram and the risk-coverage curve."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    columns = ["mean radius", "mean texture", "mean smoothness", "mean symmetry"]
    names = y.map({0: "malignant", 1: "benign"})
    X_train, X_test, y_train, y_test = train_test_split(
        X[columns], names, train_size=150, random_state=0
    )
    model = TwoStageGPClassifier(kernels=("rbf",), ard=False, random_state=0)
    return model.fit(X_train, y_train).plot(X_test, y_test)[0].figure


if __name__ == "__main__":
    draw().savefig("triage.svg")
