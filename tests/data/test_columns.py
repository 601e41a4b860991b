"""Tables with categories, booleans, text labels, dates and gaps: the rules, and the estimators."""

import datetime
import decimal
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from twostagegp import (
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    TwoStageGPWarning,
)
from twostagegp.data.columns import TableEncoder
from twostagegp.data.columns.numbers import weighted_median
from twostagegp.errors import InputError


@parametrize_with_checks([TableEncoder(), ExactGPRegressor(missing="impute")])
def test_follows_scikit_learn(estimator, check):
    check(estimator)


def exact(**options):
    return ExactGPRegressor(**{"ard": True, "random_state": 0, **options})


def quick(**options):
    return TwoStageGPRegressor(
        **{"mean": "rbf", "variance": "rbf", "ard": False, "random_state": 0, **options}
    )


def classifier(**options):
    return TwoStageGPClassifier(
        **{"mean": "rbf", "variance": "rbf", "ard": False, "random_state": 0, **options}
    )


MODELS = {
    "two-stage": quick(),
    "exact": exact(),
    "neighbors": GPNNRegressor(random_state=0),
    "classifier": classifier(),
}
each_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def colors(n=30, levels=("red", "green", "blue")):
    return [levels[k % len(levels)] for k in range(n)]


def mixed(n=60, seed=0):
    rng = np.random.default_rng(seed)
    days = pd.to_timedelta(rng.integers(0, 800, n), unit="D")
    return pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "color": rng.permutation(colors(n)),
            "kind": pd.Categorical(rng.choice(["a", "b"], n)),
            "size": pd.Categorical(rng.choice(["S", "M", "L"], n), ["S", "M", "L"], ordered=True),
            "smoker": rng.random(n) < 0.5,
            "when": pd.Timestamp("2020-01-01") + days,
            "took": pd.to_timedelta(rng.random(n), unit="D"),
            "count": pd.array(rng.integers(0, 9, n), dtype="Int64"),
        }
    )


def target(frame, seed=1):
    rng = np.random.default_rng(seed)
    x = frame["x"].fillna(0.0).to_numpy(dtype=float)
    return x + 2.0 * (frame["color"] == "red") + 0.1 * rng.normal(size=len(frame))


def encoded(values, encoder=None, **options):
    """Names and numbers of a single column called c."""
    encoder = (encoder or TableEncoder(**options)).fit(pd.DataFrame({"c": values}))
    return encoder.names, encoder.transform(pd.DataFrame({"c": values}))


def message(encoder, frame):
    """The one warning of a transform."""
    with pytest.warns(TwoStageGPWarning) as caught:
        encoder.transform(frame)
    assert len(caught) == 1
    return str(caught[0].message)


class TestKinds:
    @pytest.mark.parametrize(
        "values",
        [
            np.arange(5.0),
            np.arange(5),
            np.arange(5, dtype=np.uint8),
            pd.array(range(5), dtype="Int64"),
            pd.array(range(5), dtype="Float32"),
            pd.Series(range(5), dtype=object),
            pd.Series([decimal.Decimal(k) for k in range(5)]),
            pd.arrays.SparseArray([0.0, 1.0, 2.0, 3.0, 4.0]),
        ],
    )
    def test_numbers_are_kept(self, values):
        names, Z = encoded(values)
        assert names == ["c"]
        np.testing.assert_array_equal(Z[:, 0], np.arange(5.0))

    @pytest.mark.parametrize("dtype", [bool, "boolean", object])
    def test_booleans_become_zeros_and_ones(self, dtype):
        values = pd.Series([True, False, True], dtype=dtype)
        names, Z = encoded(values)
        assert names == ["c"]
        np.testing.assert_array_equal(Z[:, 0], [1.0, 0.0, 1.0])

    def test_an_ordered_category_becomes_its_position(self):
        values = pd.Categorical(["M", "S", "L", "M"], ["S", "M", "L", "XL"], ordered=True)
        encoder = TableEncoder().fit(pd.DataFrame({"c": values}))
        assert encoder.names == ["c"]
        np.testing.assert_array_equal(
            encoder.transform(pd.DataFrame({"c": values}))[:, 0], [1.0, 0.0, 2.0, 1.0]
        )
        # A level without training rows keeps its position in the order.
        larger = pd.DataFrame({"c": pd.Categorical(["XL"], ["XL"], ordered=True)})
        assert encoder.transform(larger)[0, 0] == 3.0
        text = message(encoder, pd.DataFrame({"c": ["XXL"]}))
        assert "'XXL'" in text
        assert "median" in text

    def test_a_category_becomes_one_column_per_level(self):
        values = pd.Categorical(["b", "a", "b", "a", "b", "a"], ["b", "a", "z"])
        names, Z = encoded(values)
        assert names == ["c=b", "c=a"]
        np.testing.assert_array_equal(Z[:2], [[1, 0], [0, 1]])

    def test_a_category_of_numbers_becomes_one_column_per_level(self):
        frame = pd.DataFrame({"c": pd.Categorical([1, 2] * 5)})
        encoder = TableEncoder().fit(frame)
        assert encoder.names == ["c=1", "c=2"]
        np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"c": [2.0]})), [[0, 1]])

    @pytest.mark.parametrize("dtype", [object, "str", "string[python]", "string[pyarrow]"])
    def test_text_labels_are_categories(self, dtype):
        if "pyarrow" in str(dtype):
            pytest.importorskip("pyarrow")
        names, Z = encoded(pd.Series(colors(9), dtype=dtype))
        assert names == ["c=blue", "c=green", "c=red"]
        np.testing.assert_array_equal(Z[:3], [[0, 0, 1], [0, 1, 0], [1, 0, 0]])

    def test_a_duration_becomes_days(self):
        names, Z = encoded(pd.to_timedelta([1.5, 36.0], unit="h"))
        assert names == ["c: days"]
        np.testing.assert_allclose(Z[:, 0], [1.5 / 24, 1.5])
        _, again = encoded(
            pd.Series([datetime.timedelta(hours=h) for h in (1.5, 36)], dtype=object)
        )
        np.testing.assert_array_equal(again, Z)

    def test_rare_levels_are_pooled(self):
        values = ["a"] * 10 + ["b"] * 3 + ["c", "c", "d"]
        names, Z = encoded(values)
        assert names == ["c=a", "c=b", "c=(other)"]
        np.testing.assert_array_equal(Z.sum(0), [10, 3, 3])
        assert encoded(values, min_rows=2)[0] == ["c=a", "c=b", "c=c", "c=(other)"]
        assert encoded(values, min_share=0.2)[0] == ["c=a", "c=(other)"]

    def test_the_most_common_of_many_levels_have_columns(self):
        values = np.repeat([f"level {k:02d}" for k in range(40)], np.arange(40) + 3)
        names, Z = encoded(values, min_share=0.0)
        assert len(names) == 22
        assert names[0] == "c=level 20"
        assert names[-2:] == ["c=(other)", "c: frequency"]
        np.testing.assert_allclose(Z[0, -1], 3 / len(values))
        np.testing.assert_allclose(Z[-1, -1], 42 / len(values))
        np.testing.assert_array_equal(Z[:, :-1].sum(1), 1.0)

    def test_free_text_is_refused(self):
        frame = pd.DataFrame({"comment": [f"this is remark number {k}" for k in range(30)]})
        with pytest.raises(InputError, match=r"'comment' looks like free text: 30 dist.*TextEncod"):
            TableEncoder().fit(frame)
        TableEncoder().fit(frame.astype("category"))

    @pytest.mark.parametrize(
        ("values", "what"),
        [
            ([str(k / 7) for k in range(30)], "numbers as text.*to_numeric"),
            ([f"2024-01-{k + 1:02d}" for k in range(30)], "dates as text.*to_datetime"),
        ],
    )
    def test_numbers_and_dates_stored_as_text_are_refused(self, values, what):
        with pytest.raises(InputError, match=f"column 'c' holds {what}"):
            encoded(values)

    @pytest.mark.parametrize(
        ("values", "what"),
        [
            (
                ["tall", 1.5, "tall", 2.5],
                r"mixes kinds of values: 'tall' \(str\) and 1.5 \(float\)",
            ),
            ([(1, 2), (3, 4)], r"such as \(1, 2\) \(tuple\)"),
            ([1j, 2j], "such as"),
        ],
    )
    def test_other_objects_are_refused(self, values, what):
        with pytest.raises(InputError, match=f"column 'c' .*{what}"):
            encoded(pd.Series(values, dtype=object if values[0] != 1j else complex))

    def test_a_category_of_one_level_is_constant(self):
        names, Z = encoded(["only"] * 8)
        assert names == ["c=only"]
        assert (Z == 1.0).all()

    @pytest.mark.parametrize("dtype", [object, float, "string", "category", "datetime64[ns]"])
    def test_a_column_without_values_is_constant(self, dtype):
        frame = pd.DataFrame({"c": pd.Series([None] * 4, dtype=dtype)})
        encoder = TableEncoder().fit(frame)
        assert encoder.names == ["c"]
        assert (encoder.transform(pd.DataFrame({"c": ["now", "there"]})) == 0.0).all()
        assert "not used" in encoder.lines()[0]

    def test_the_median_uses_the_weights(self):
        rng = np.random.default_rng(0)
        for n in (1, 2, 7, 8):
            values, counts = rng.normal(size=n), rng.integers(1, 4, n)
            expected = np.median(np.repeat(values, counts))
            assert weighted_median(values, counts * 1.0) == pytest.approx(expected)


class TestDates:
    def test_a_date_becomes_days_and_cycles(self):
        when = pd.date_range("2020-03-01", periods=3 * 366, freq="D")
        names, Z = encoded(when)
        expected = ["days", "year (sin)", "year (cos)", "week (sin)", "week (cos)"]
        assert names == [f"c: {part}" for part in expected]
        np.testing.assert_array_equal(Z[:, 0], np.arange(len(when)))
        # The same day of the week has the same phase; the year starts at angle 0.
        np.testing.assert_allclose(Z[7, 3:], Z[0, 3:], atol=1e-12)
        new_year = int(np.flatnonzero(when == "2021-01-01")[0])
        np.testing.assert_allclose(Z[new_year, 1:3], [0.0, 1.0], atol=1e-12)

    def test_a_cycle_is_used_only_if_the_dates_span_a_period(self):
        assert encoded(pd.date_range("2020", periods=5, freq="D"))[0] == ["c: days"]
        hours = encoded(pd.date_range("2020", periods=30, freq="h"))[0]
        assert hours == ["c: days", "c: day (sin)", "c: day (cos)"]
        # One weekday only: no cycle of the week.
        assert "week" not in str(encoded(pd.date_range("2020", periods=9, freq="7D"))[0])

    @pytest.mark.parametrize("kind", ["date", "datetime", "period"])
    def test_other_types_of_dates_are_encoded_alike(self, kind):
        when = pd.date_range("2020-01-01", periods=40, freq="D")
        values = {
            "date": lambda: pd.Series(when.date, dtype=object),
            "datetime": lambda: pd.Series(when.to_pydatetime(), dtype=object),
            "period": lambda: when.to_period("D"),
        }[kind]()
        np.testing.assert_allclose(encoded(values)[1], encoded(when)[1])

    def test_dates_follow_the_time_zone_of_the_fit(self):
        when = pd.date_range("2020-01-01", periods=100, freq="6h", tz="America/New_York")
        encoder = TableEncoder().fit(pd.DataFrame({"c": when}))
        Z = encoder.transform(pd.DataFrame({"c": when}))
        np.testing.assert_allclose(Z[0, -2:], [0.0, 1.0], atol=1e-12)  # midnight there
        elsewhere = pd.DataFrame({"c": when.tz_convert("Asia/Tokyo")})
        np.testing.assert_allclose(encoder.transform(elsewhere), Z)
        back = encoder.inverse_transform(Z)["c"]
        assert (abs(back - when.to_series(index=back.index)) < pd.Timedelta("1ms")).all()
        with pytest.raises(InputError, match=r"column 'c' has no time zone.*tz_localize"):
            encoder.transform(pd.DataFrame({"c": when.tz_localize(None)}))
        naive = TableEncoder().fit(pd.DataFrame({"c": when.tz_localize(None)}))
        with pytest.raises(InputError, match="column 'c' has a time zone, but had none"):
            naive.transform(pd.DataFrame({"c": when}))

    def test_elapsed_days_do_not_depend_on_daylight_saving(self):
        # The night in which clocks go forward has 23 hours.
        when = pd.to_datetime(["2024-03-30", "2024-03-31", "2024-04-01"]).tz_localize(
            "Europe/Paris"
        )
        np.testing.assert_allclose(encoded(when)[1][:, 0], [0.0, 1.0, 1.0 + 23 / 24])

    def test_dates_outside_the_training_range_are_encoded(self):
        frame = pd.DataFrame({"c": pd.date_range("2020-01-01", periods=50, freq="D")})
        encoder = TableEncoder().fit(frame)
        Z = encoder.transform(pd.DataFrame({"c": pd.to_datetime(["1970-01-01", "2100-01-01"])}))
        np.testing.assert_array_equal(Z[:, 0], [-18262.0, 29220.0])
        model = exact().fit(frame, np.sin(np.arange(50) / 5))
        std = model.predict(
            pd.DataFrame({"c": pd.to_datetime(["2020-01-20", "2100-01-01"])}), return_std=True
        )[1]
        assert std[1] > 5 * std[0]

    @pytest.mark.parametrize("value", ["2020-01-03", 5])
    def test_text_and_numbers_are_refused_as_dates(self, value):
        encoder = TableEncoder().fit(pd.DataFrame({"c": pd.date_range("2020", periods=5)}))
        with pytest.raises(InputError, match=rf"column 'c' held dates.*{value}.*to_datetime"):
            encoder.transform(pd.DataFrame({"c": pd.Series([value], dtype=object)}))

    def test_objects_that_are_not_dates_are_refused(self):
        encoder = TableEncoder().fit(pd.DataFrame({"c": pd.date_range("2020", periods=5)}))
        with pytest.raises(InputError, match="column 'c' cannot be read as dates"):
            encoder.transform(pd.DataFrame({"c": pd.Series([(1, 2)], dtype=object)}))


class TestGaps:
    def test_numbers_get_the_median_and_an_indicator(self):
        names, Z = encoded([1.0, np.nan, 3.0, 10.0])
        assert names == ["c", "c is missing"]
        np.testing.assert_array_equal(Z, [[1, 0], [3, 1], [3, 0], [10, 0]])

    def test_missing_values_of_every_kind_of_column_are_filled(self):
        frame = mixed()
        frame.loc[[3, 9], frame.columns != "smoker"] = None
        frame["smoker"] = frame["smoker"].astype("boolean")
        frame.loc[4, "smoker"] = None
        encoder = TableEncoder().fit(frame)
        Z = pd.DataFrame(encoder.transform(frame), columns=encoder.names)
        assert np.isfinite(Z.to_numpy()).all()
        for name in ("x", "size", "when", "took", "count"):
            assert list(np.flatnonzero(Z[f"{name} is missing"])) == [3, 9]
        for name in ("color", "kind"):
            assert list(np.flatnonzero(Z[f"{name}=(missing)"])) == [3, 9]
        assert list(np.flatnonzero(Z["smoker is missing"])) == [4]
        medians = Z.loc[Z["when is missing"] == 0].median()
        for name in ("when: days", "when: year (sin)", "when: week (cos)"):
            assert Z.loc[3, name] == pytest.approx(medians[name])

    def test_missing_values_in_new_rows_only_give_a_warning(self):
        frame = mixed()
        encoder = TableEncoder().fit(frame)
        new = frame.iloc[:3].astype({"smoker": "boolean"})
        new.loc[1] = None
        with pytest.warns(TwoStageGPWarning) as caught:
            Z = pd.DataFrame(encoder.transform(new), columns=encoder.names)
        assert len(caught) == 1
        text = str(caught[0].message)
        for name in frame.columns:
            assert f"column {name!r} has 1 missing" in text
        assert Z.loc[1, "x"] == pytest.approx(frame["x"].median())
        assert (Z.loc[1, ["color=red", "color=green", "color=blue"]] == 0.0).all()

    def test_error_names_row_and_column(self):
        frame = mixed()
        encoder = TableEncoder(missing="error").fit(frame)
        frame.loc[4, "color"] = None
        with pytest.raises(InputError, match="NaN: 1 of 480 values, the first in row 4, column"):
            TableEncoder(missing="error").fit(frame)
        with pytest.raises(InputError, match="row 4, column 'color'"):
            encoder.transform(frame)

    def test_infinity_stays_an_error(self):
        frame = mixed()
        frame.loc[2, "x"] = np.inf
        frame.loc[3, "x"] = np.nan
        encoder = TableEncoder().fit(frame)
        with pytest.raises(InputError, match=r"infinity.*row 2, column 'x'"):
            encoder.transform(frame)
        with pytest.raises(InputError, match=r"infinity.*row 2, column 'x'"):
            exact().fit(frame, target(frame))

    @each_model
    def test_the_missing_parameter_decides_between_filling_and_an_error(self, model):
        frame = mixed()[["x", "count"]].astype(float)
        y = np.arange(60) % 2
        holes = frame.copy()
        holes.loc[7, "x"] = np.nan
        plain = holes.to_numpy()
        for table in (holes, plain):
            with pytest.raises(InputError, match="row 7, column 'x"):
                clone(model).set_params(missing="error").fit(table, y)
            fitted = clone(model).set_params(missing="impute").fit(table, y)
            assert np.isfinite(fitted.predict(table)).all()
        with pytest.raises(InputError, match=r"row 7, column 'x0'.*missing='impute'"):
            clone(model).fit(plain, y)
        assert clone(model).fit(holes, y).columns_.names == ["x", "x is missing", "count"]
        with pytest.raises(InputError, match="missing='drop': use 'auto'"):
            clone(model).set_params(missing="drop").fit(frame, y)

    @each_model
    def test_missing_values_in_new_rows_of_numbers_are_filled(self, model):
        frame = mixed()[["x", "count"]].astype(float)
        y = np.arange(60) % 2
        holes, filled = frame.copy(), frame.copy()
        holes.loc[7, "x"] = np.nan
        filled.loc[7, "x"] = frame["x"].median()
        fitted = clone(model).fit(frame, y)
        with pytest.warns(TwoStageGPWarning, match="column 'x' has 1 missing"):
            found = fitted.predict(holes)
        np.testing.assert_allclose(found, fitted.predict(filled))
        for choice in ("auto", "error"):
            refusing = clone(model).set_params(missing=choice).fit(frame.to_numpy(), y)
            with pytest.raises(InputError, match="row 7, column 'x0'"):
                refusing.predict(holes.to_numpy())
        with pytest.raises(InputError, match="row 7, column 'x'"):
            clone(model).set_params(missing="error").fit(frame, y).predict(holes)
        willing = clone(model).set_params(missing="impute").fit(frame.to_numpy(), y)
        with pytest.warns(TwoStageGPWarning, match="column 'x0' has 1 missing"):
            np.testing.assert_allclose(willing.predict(holes.to_numpy()), found)


class TestLevels:
    def test_unseen_levels_give_one_warning(self):
        frame = pd.DataFrame({"c": colors()})
        encoder = TableEncoder().fit(frame)
        text = message(encoder, pd.DataFrame({"c": ["teal", "red", "teal", "pink"]}))
        assert text.count("'teal'") == 1
        assert "column 'c' holds levels not seen in fit: 'teal', 'pink'" in text
        assert "none of the known levels" in text
        # A level is named once: only new levels give another warning.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            encoder.transform(pd.DataFrame({"c": ["teal", "pink"]}))
        text = message(encoder, pd.DataFrame({"c": ["teal", "mauve"]}))
        assert "'teal'" not in text
        assert "'mauve'" in text

    def test_unseen_levels_are_encoded_as_pooled_ones(self):
        encoder = TableEncoder().fit(pd.DataFrame({"c": [*colors(), "rare"]}))
        new = pd.DataFrame({"c": ["teal", "rare", None]})
        assert "pooled" in message(encoder, new)
        np.testing.assert_array_equal(encoder.transform(new), [[0, 0, 0, 1]] * 3)

    def test_levels_are_compared_by_value(self):
        frame = pd.DataFrame({"c": pd.Categorical(colors())})
        encoder = TableEncoder().fit(frame)
        expected = encoder.transform(frame.iloc[:2])
        for categories in (["red", "green"], ["pink", "green", "red"]):
            new = pd.DataFrame({"c": pd.Categorical(["red", "green"], categories)})
            np.testing.assert_array_equal(encoder.transform(new), expected)
        np.testing.assert_array_equal(encoder.transform(frame.iloc[:2].astype(str)), expected)

    def test_weights_are_counts(self):
        rng = np.random.default_rng(0)
        frame = mixed(40)
        frame.loc[[2, 8], ["x", "color"]] = None
        frame.loc[5, "color"] = "rare"
        weight = rng.integers(0, 4, 40)
        few = TableEncoder().fit(frame, sample_weight=weight)
        many = TableEncoder().fit(frame.iloc[np.repeat(np.arange(40), weight)])
        assert few.names == many.names
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_allclose(few.transform(frame), many.transform(frame))
        small = TableEncoder().fit(frame, sample_weight=np.full(40, 1e-6))
        assert small.names == TableEncoder().fit(frame).names


class TestEncoder:
    def test_decoding_inverts_encoding(self):
        frame = mixed()
        frame.loc[[3, 9], ["x", "color", "kind", "size", "when", "took"]] = None
        frame["flag"] = pd.array([True, None] * 30, dtype="boolean")
        frame["void"] = None
        encoder = TableEncoder().fit(frame)
        back = encoder.inverse_transform(encoder.transform(frame))
        assert list(back.columns) == list(frame.columns)
        for name in ("kind", "size", "smoker", "flag", "x"):
            pd.testing.assert_series_equal(back[name], frame[name], check_categorical=False)
        assert back["color"].isna().equals(frame["color"].isna())
        assert (back["color"].dropna() == frame["color"].dropna()).all()
        assert back["void"].isna().all()
        np.testing.assert_array_equal(back["count"], frame["count"].to_numpy(dtype=float))
        for name in ("when", "took"):
            assert back[name].isna().equals(frame[name].isna())
            assert (abs(back[name] - frame[name]).dropna() < pd.Timedelta("1ms")).all()
        with pytest.raises(InputError, match="columns are expected"):
            encoder.inverse_transform([[1.0]])

    def test_pooled_levels_come_back_as_other(self):
        for dtype in (object, "category"):
            frame = pd.DataFrame({"c": pd.Series([*colors(), "rare"], dtype=dtype)})
            encoder = TableEncoder().fit(frame)
            back = encoder.inverse_transform(encoder.transform(frame))["c"]
            assert list(back[-2:]) == ["blue", "(other)"]
            assert encoder.inverse_transform(np.zeros((1, 4)))["c"].isna().all()

    def test_describe_lists_every_column(self):
        encoder = TableEncoder().fit(mixed())
        table = encoder.describe()
        assert list(table.index) == list(mixed().columns)
        assert table.loc["size", "kind"] == "ordered category"
        assert "0 (S) to 2 (L)" in table.loc["size", "encoding"]
        assert table.loc["color", "names"] == "color=blue, color=green, color=red"
        assert [line.split(":")[0] for line in encoder.lines()] == [
            "color", "kind", "size", "smoker", "when", "took",
        ]  # fmt: skip

    def test_the_output_can_be_a_data_frame(self):
        frame = mixed()
        out = TableEncoder().set_output(transform="pandas").fit_transform(frame)
        assert list(out.columns) == TableEncoder().fit(frame).names
        pd.testing.assert_index_equal(out.index, frame.index)

    def test_invalid_parameters_are_refused(self):
        frame = mixed()
        for name, value in (
            ("missing", "auto"), ("max_levels", 0), ("min_rows", 1.5), ("min_share", 1.0),
        ):  # fmt: skip
            with pytest.raises(InputError, match=f"{name}={value!r}"):
                TableEncoder(**{name: value}).fit(frame)

    def test_columns_of_equal_names_are_refused(self):
        frame = mixed()[["x", "color"]]
        twice = frame[["x", "x", "color"]]
        with pytest.raises(InputError, match="more than one column is called 'x'"):
            TableEncoder().fit(twice)
        for columns in (["x", "x"], ["x", "x", "color"]):
            with pytest.raises(InputError, match="more than one column is called 'x'"):
                exact().fit(frame[columns], np.arange(60))
        with pytest.raises(InputError, match="more than one column is called 'x'"):
            exact().fit(frame, np.arange(60)).predict(twice)
        with pytest.raises(InputError, match="called 'color=red'"):
            TableEncoder().fit(frame.rename(columns={"x": "color=red"}))

    def test_numbers_are_not_changed(self):
        encoder = TableEncoder().fit(mixed()[["x", "smoker"]])
        for name, value in (("x", "tall"), ("smoker", "yes")):
            new = mixed()[["x", "smoker"]].astype(object)
            new.loc[2, name] = value
            with pytest.raises(InputError, match=f"column '{name}' held .*'{value}' in row 2"):
                encoder.transform(new)


class TestEstimators:
    @each_model
    def test_mixed_table_equals_hand_encoded_numbers(self, model):
        frame = mixed()
        frame.loc[5, "x"] = None
        y = target(frame)
        y = (y > y.median()) if isinstance(model, TwoStageGPClassifier) else y
        by_hand = pd.DataFrame({"x": frame["x"].fillna(frame["x"].median())})
        by_hand["x is missing"] = frame["x"].isna()
        for level in ("blue", "green", "red"):
            by_hand[f"color={level}"] = frame["color"] == level
        by_hand["size"] = frame["size"].cat.codes
        by_hand["smoker"] = frame["smoker"]
        by_hand["took"] = frame["took"] / pd.Timedelta(days=1)
        by_hand["count"] = frame["count"]
        by_hand = by_hand.to_numpy(dtype=float)
        frame = frame[["x", "color", "size", "smoker", "took", "count"]]
        ours, theirs = clone(model).fit(frame, y), clone(model).fit(by_hand, y)
        np.testing.assert_array_equal(ours.predict(frame), theirs.predict(by_hand))
        assert theirs.columns_ is None
        assert theirs.fit_report_.encoded_columns == []
        if hasattr(ours, "predict_interval"):
            np.testing.assert_array_equal(
                ours.predict_interval(frame), theirs.predict_interval(by_hand)
            )
        else:
            np.testing.assert_array_equal(ours.predict_proba(frame), theirs.predict_proba(by_hand))
        assert list(ours.feature_names_in_) == list(frame.columns)
        assert ours.n_features_in_ == 6

    @each_model
    def test_frames_of_numbers_give_the_numbers_of_arrays(self, model):
        frame = mixed()[["x", "count"]].astype({"count": int})
        y = np.arange(60) % 2
        framed = clone(model).fit(frame, y)
        bare = clone(model).fit(frame.to_numpy(dtype=float), y)
        np.testing.assert_array_equal(framed.predict(frame), bare.predict(frame.to_numpy(float)))
        assert framed.columns_.plain
        assert framed.fit_report_.encoded_columns == []
        assert "column " not in str(framed.fit_report_)

    @each_model
    def test_the_report_lists_the_encoded_columns(self, model):
        frame = mixed()
        fitted = clone(model).fit(frame, np.arange(60) % 2)
        report = fitted.fit_report_
        assert len(report.encoded_columns) == 6
        assert "color: text, one 0/1 column for each of 3 level(s)" in str(report)
        assert fitted.columns_.describe().loc["when", "kind"] == "date"

    def test_relevance_uses_readable_names(self):
        frame = mixed()
        model = exact().fit(frame, target(frame))
        assert list(model.relevance_) == model.columns_.names
        summed = model.columns_.sum_by_column(model.relevance_)
        assert list(summed) == list(frame.columns)
        assert sum(summed.values()) == pytest.approx(1.0)
        assert summed["color"] + summed["x"] > 0.5
        assert model.predict(frame) == pytest.approx(target(frame), abs=0.5)

    def test_constant_columns_are_reported(self):
        frame = mixed()[["x"]].assign(color="red", void=None)
        model = exact().fit(frame, target(frame))
        assert model.fit_report_.constant_columns == ["color=red", "void"]
        with pytest.warns(TwoStageGPWarning, match="'teal'"):
            model.predict(frame.assign(color="teal"))

    @each_model
    def test_column_names_are_checked_at_prediction(self, model):
        frame = mixed()
        fitted = clone(model).fit(frame, np.arange(60) % 2)
        with pytest.raises(InputError, match=r"(?s)unseen at fit.*colour.*'colour' for 'color'"):
            fitted.predict(frame.rename(columns={"color": "colour"}))
        with pytest.raises(ValueError, match=r"(?s)now missing.*when"):
            fitted.predict(frame.drop(columns="when"))
        with pytest.raises(InputError, match=r"(?s)same order.*X\[model.feature_names_in_\]"):
            fitted.predict(frame[frame.columns[::-1]])
        with pytest.raises(ValueError, match="0 sample"):
            fitted.predict(frame.iloc[:0])

    def test_column_names_of_a_table_of_numbers_are_checked(self):
        frame = mixed()[["x"]]
        model = exact().fit(frame, frame["x"])
        with pytest.raises(ValueError, match="now missing"):
            model.predict(frame.rename(columns={"x": "completely different"}))
        with pytest.raises(ValueError, match="2 features"):
            exact().fit(frame.to_numpy(), frame["x"]).predict(np.zeros((3, 2)))

    def test_arrays_are_accepted_at_prediction_by_position(self):
        frame = mixed()
        model = exact().fit(frame, target(frame))
        with pytest.warns(UserWarning, match="feature names"):
            found = model.predict(frame.to_numpy(dtype=object))
        np.testing.assert_allclose(found, model.predict(frame))
        numbered = frame.set_axis(range(8), axis=1)
        model = exact().fit(numbered, target(frame))
        assert "x1=red" in model.relevance_
        np.testing.assert_allclose(model.predict(numbered), found)

    @each_model
    def test_tables_of_the_wrong_shape_are_refused(self, model):
        frame = mixed()
        with pytest.raises(ValueError, match="0 sample"):
            clone(model).fit(frame.iloc[:0], [])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            clone(model).fit(frame, [0, 1])
        with pytest.raises(ValueError, match="y"):
            clone(model).fit(frame, None)

    def test_unseen_level_is_less_certain(self):
        frame = mixed(200)
        model = quick().fit(frame[["x", "color"]], target(frame))
        new = frame[["x", "color"]].iloc[:20]
        known = model.predict(new, return_latent_std=True)[1]
        with pytest.warns(TwoStageGPWarning, match="'teal'"):
            unknown = model.predict(new.assign(color="teal"), return_latent_std=True)[1]
        assert (unknown > known).all()

    def test_clone_pickle_and_pipeline_keep_the_encoder(self):
        frame = mixed()
        y = target(frame)
        model = quick(missing="impute")
        assert clone(model).get_params() == model.get_params()
        expected = model.fit(frame, y).predict(frame)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(frame), expected)
        pipe = make_pipeline(TableEncoder(), StandardScaler(), quick()).fit(frame, y)
        assert pipe.predict(frame) == pytest.approx(expected, abs=1e-3)
        assert make_pipeline(quick()).fit(frame, y).predict(frame) == pytest.approx(expected)

    def test_a_grid_search_accepts_frames(self):
        frame = mixed()
        frame.loc[3, "x"] = None
        grid = GridSearchCV(
            exact(), {"missing": ["impute", "error"]}, cv=2, error_score=-99.0, refit=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grid.fit(frame, target(frame))
        assert grid.best_params_ == {"missing": "impute"}
        assert grid.cv_results_["mean_test_score"][1] < -10

    def test_cross_validation_accepts_frames(self):
        frame = mixed(90)
        frame.loc[::10, "x"] = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TwoStageGPWarning)
            scores = cross_val_score(exact(), frame[["x", "color"]], target(frame), cv=3)
        assert scores.min() > 0.8

    def test_frames_work_with_groups_weights_and_several_targets(self):
        frame = mixed()
        y = target(frame)
        groups = frame["kind"].astype(str) + frame["size"].astype(str)
        model = quick().fit(frame, np.column_stack([y, -y]), groups=groups)
        assert model.predict(frame).shape == (60, 2)
        assert all(len(report.encoded_columns) == 6 for report in model.fit_report_)
        weight = np.arange(60) % 3
        few = exact().fit(frame, y, sample_weight=weight)
        rows = np.repeat(np.arange(60), weight)
        many = exact().fit(frame.iloc[rows], y.iloc[rows])
        np.testing.assert_allclose(few.predict(frame), many.predict(frame), rtol=1e-4, atol=1e-4)
        classes = classifier().fit(frame, y > 0, groups=groups, sample_weight=weight)
        assert classes.predict_proba(frame).shape == (60, 2)

    def test_the_table_is_not_changed(self):
        frame = mixed()
        frame.loc[3, "x"] = None
        before = frame.copy(deep=True)
        quick().fit(frame, target(frame)).predict(frame)
        pd.testing.assert_frame_equal(frame, before)


def any_column(rng, kind, n):
    """A column of one kind, some of it missing."""
    values = {
        "number": lambda: pd.Series(rng.normal(size=n)),
        "integer": lambda: pd.Series(pd.array(rng.integers(-3, 3, n), dtype="Int64")),
        "boolean": lambda: pd.Series(pd.array(rng.random(n) < 0.5, dtype="boolean")),
        "object": lambda: pd.Series(rng.random(n) < 0.5).astype(object),
        "text": lambda: pd.Series(rng.choice(["a", "b", "", "Ünï"], n)),
        "category": lambda: pd.Series(pd.Categorical(rng.integers(0, 5, n), range(7))),
        "ordered": lambda: pd.Series(pd.Categorical(rng.choice(list("abc"), n), ordered=True)),
        "date": lambda: pd.Series(
            pd.Timestamp("1999-12-31 23:59") + pd.to_timedelta(rng.uniform(0, 3, n) ** 6, unit="D")
        ),
        "zone": lambda: pd.Series(
            pd.Timestamp("2024-03-30", tz="Europe/Paris")
            + pd.to_timedelta(rng.integers(0, 50, n), unit="h")
        ),
        "duration": lambda: pd.Series(pd.to_timedelta(rng.normal(size=n), unit="h")),
        "constant": lambda: pd.Series(["same"] * n),
    }[kind]()
    return values.where(rng.random(n) >= rng.choice([0.0, 0.0, 0.2, 1.0]))


KINDS = ["number", "integer", "boolean", "object", "text", "category", "ordered", "date", "zone",
         "duration", "constant"]  # fmt: skip


@st.composite
def frames(draw):
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(3, 25))
    return pd.DataFrame({f"{k} {kind}": any_column(rng, kind, n) for k, kind in enumerate(kinds)})


fuzz = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@fuzz
@given(frames())
def test_encoding_decoded_values_gives_the_same_numbers(frame):
    encoder = TableEncoder(min_rows=1).fit(frame)
    Z = encoder.transform(frame)
    assert np.isfinite(Z).all()
    assert Z.shape == (len(frame), len(encoder.names))
    back = encoder.inverse_transform(Z)
    assert back.isna().to_numpy().tolist() == frame.isna().to_numpy().tolist()
    np.testing.assert_allclose(encoder.transform(back), Z, atol=1e-6)


@settings(fuzz, max_examples=25)
@given(frames())
def test_models_can_be_fitted_to_any_small_frame(frame):
    y = np.arange(len(frame)) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        mean, std = exact().fit(frame, y).predict(frame.iloc[::-1], return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0.0).all()
        part = exact().fit(frame.iloc[:-1], y[:-1]).predict(frame.iloc[-1:])
        assert np.isfinite(part).all()
