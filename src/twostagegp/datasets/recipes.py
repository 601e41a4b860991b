"""Recipes: how the file of a public source becomes a table.

A :class:`Recipe` says where the file is, how it is read, and what the result must look like. The
seven tables of the GPNN benchmark (the paper's Table 6: poletele, bike, protein, ctslice, road3d,
song, house_electric) follow the scripts published with it [1]_; the small ones are the columns of
their sources. Values are never scaled or centred.

The result is compared with what the source documents: the number of rows and columns, no missing
values, and the range of the target.

References
----------
.. [1] ``preprocessing_uci.py`` and ``preprocess_house_electric.py`` of
   https://github.com/ant-stephenson/gpnn-experiments
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.errors import InputError

__all__ = ["RECIPES", "Arrays", "Recipe", "prepare"]

Arrays = dict[str, NDArray[Any]]

_UCI = "https://archive.ics.uci.edu/static/public"


@dataclass(frozen=True)
class Recipe:
    """The source of a table, how to read it, and how to check the result.

    Attributes
    ----------
    url : str
        Address of the source.
    file : str
        Name of the download in the folder.
    member : str or None
        Path of the table in a zip archive; None if the download is the table itself.
    n, d : int
        Rows and columns of X.
    y_range : tuple of float
        Lower and upper limit of the target.
    read : callable
        From the open file to the arrays of :mod:`twostagegp.datasets.tables`.
    sha256 : str or None
        Checksum of the download, if two or more independent public records of it agree.
    test_from : int or None
        Standard split 0 has the rows from this one on as its test rows; None for no standard split.
    """

    url: str
    file: str
    member: str | None
    n: int
    d: int
    y_range: tuple[float, float]
    read: Callable[[IO[bytes]], Arrays]
    sha256: str | None = None
    test_from: int | None = None


def prepare(recipe: Recipe, stream: IO[bytes]) -> Arrays:
    """Read a table, check it, and return its arrays.

    Raises
    ------
    InputError
        If the file does not contain the table that the recipe describes.
    """
    try:
        arrays = recipe.read(stream)
    # Includes ParserError and UnicodeDecodeError, which are ValueErrors.
    except (ValueError, KeyError, OverflowError) as error:
        # The first line: pandas adds lines of advice.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"not the expected table: {reason}") from error
    X, y = arrays["X"], arrays["y"]
    if X.shape != (recipe.n, recipe.d) or y.shape != (recipe.n,):
        raise InputError(
            f"X has shape {X.shape} and y {y.shape}; expected were {recipe.n} rows and "
            f"{recipe.d} columns"
        )
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise InputError("values are missing or not finite")
    low, high = recipe.y_range
    if y.min() < low or y.max() > high:
        raise InputError(
            f"the target ranges from {y.min():g} to {y.max():g}; expected was {low} to {high}"
        )
    if recipe.test_from is not None:
        arrays["test_0"] = np.arange(recipe.test_from, recipe.n)
    return arrays


# --- readers -------------------------------------------------------------------------------------


def _numbers(
    stream: IO[bytes], names: Sequence[str], sep: str = ",", header: bool = True, **options: Any
) -> pd.DataFrame:
    """Read a table of numbers and check that it has exactly these columns."""
    settings: dict[str, Any] = {"dtype": np.float64, **options}
    frame: pd.DataFrame = pd.read_csv(stream, sep=sep, header=0 if header else None, **settings)
    # pandas turns the first column into an index if rows are longer than the header.
    if not isinstance(frame.index, pd.RangeIndex) or frame.shape[1] != len(names):
        raise InputError(
            f"expected {len(names)} columns in every row, found {frame.shape[1]} or other lengths"
        )
    if header:
        found = [str(column).strip() for column in frame.columns]
        if found != list(names):
            raise InputError(f"the columns are {found[:30]}, expected were {list(names)[:30]}")
    frame.columns = pd.Index(names)
    return frame


def _arrays(frame: pd.DataFrame, inputs: Sequence[str], target: str, **others: Any) -> Arrays:
    return {
        "X": frame[list(inputs)].to_numpy(np.float64),
        "y": frame[target].to_numpy(np.float64),
        "feature_names": np.array(list(inputs)),
        **others,
    }


def _plain(
    stream: IO[bytes],
    *,
    names: tuple[str, ...],
    target: str,
    drop: tuple[str, ...] = (),
    sep: str = ",",
    header: bool = True,
) -> Arrays:
    """Return all columns except the target and the dropped ones as inputs."""
    frame = _numbers(stream, names, sep, header)
    inputs = [name for name in names if name != target and name not in drop]
    return _arrays(frame, inputs, target)


_BIKE = [
    "season",
    "yr",
    "mnth",
    "hr",
    "holiday",
    "weekday",
    "workingday",
    "weathersit",
    "temp",
    "atemp",
    "hum",
    "windspeed",
]


def _bike(stream: IO[bytes]) -> Arrays:
    """Take the day of the month from ``dteday``, and drop ``instant``, which is a row number.

    ``casual`` and ``registered`` are dropped too: their sum is the target.
    """
    names = ["instant", "dteday", *_BIKE, "casual", "registered", "cnt"]
    types = dict.fromkeys(names, np.float64) | {"dteday": str}
    frame = _numbers(stream, names, dtype=types)
    frame["day"] = pd.to_datetime(frame["dteday"], format="%Y-%m-%d").dt.day
    return _arrays(frame, ["day", *_BIKE], "cnt")


_VOICE = [
    "Jitter(%)",
    "Jitter(Abs)",
    "Jitter:RAP",
    "Jitter:PPQ5",
    "Jitter:DDP",
    "Shimmer",
    "Shimmer(dB)",
    "Shimmer:APQ3",
    "Shimmer:APQ5",
    "Shimmer:APQ11",
    "Shimmer:DDA",
    "NHR",
    "HNR",
    "RPDE",
    "DFA",
    "PPE",
]


def _poletele(stream: IO[bytes]) -> Arrays:
    """Drop ``subject#`` and ``test_time``, and keep ``motor_UPDRS`` as an input.

    This is the benchmark's easy version: the motor score is a part of the target.
    """
    names = ["subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", *_VOICE]
    frame = _numbers(stream, names)
    subject = frame["subject#"].to_numpy(np.int64)
    return _arrays(frame, ["age", "sex", "motor_UPDRS", *_VOICE], "total_UPDRS", subject=subject)


def _ctslice(stream: IO[bytes]) -> Arrays:
    """Keep all 384 histogram columns, including constant ones; the groups are patients."""
    names = ["patientId", *(f"value{j}" for j in range(384)), "reference"]
    frame = _numbers(stream, names)
    return _arrays(frame, names[1:-1], "reference", patient=frame["patientId"].to_numpy(np.int64))


def _road3d(stream: IO[bytes]) -> Arrays:
    """Predict altitude from longitude and latitude; the groups are roads (``OSM_ID``)."""
    names = ["road", "longitude", "latitude", "altitude"]
    # Road numbers are read as integers: some have more digits than a float can hold.
    types = {0: np.int64, 1: np.float64, 2: np.float64, 3: np.float64}
    frame = _numbers(stream, names, header=False, dtype=types)
    return _arrays(frame, names[1:3], "altitude", road=frame["road"].to_numpy())


def _song(stream: IO[bytes]) -> Arrays:
    """Predict the year of release from 12 means and 78 covariances of timbre."""
    timbre = [f"mean{j}" for j in range(12)] + [f"covariance{j}" for j in range(78)]
    frame = _numbers(stream, ["year", *timbre], header=False)
    return _arrays(frame, timbre, "year")


_METERS = ["Sub_metering_1", "Sub_metering_2", "Sub_metering_3"]
_HOUSE = [
    "Date",
    "Time",
    "Global_active_power",
    "Global_reactive_power",
    "Voltage",
    "Global_intensity",
    *_METERS,
]


def _house_electric(stream: IO[bytes]) -> Arrays:
    r"""Predict the energy that no sub-meter measures, in Wh per minute.

    .. math:: y = \tfrac{1000}{60} P_\mathrm{active} - s_1 - s_2 - s_3

    from :math:`\tfrac{1000}{60} P_\mathrm{reactive}`, voltage, intensity, the three sub-meters, day
    of the year / 365 and minute of the day / 1440. Minutes with a missing value (``?``) are
    dropped. Dates are day/month/year, as the source says; the published script lets pandas guess
    the order.
    """
    types: dict[str, Any] = dict.fromkeys(_HOUSE[2:], np.float64)
    # There are 1442 distinct days and 1440 distinct minutes.
    types |= {"Date": "category", "Time": "category"}
    frame = _numbers(stream, _HOUSE, ";", dtype=types, na_values=["?"]).dropna()
    watt_hours = 1000.0 / 60.0
    columns = {
        "reactive_wh_min": frame["Global_reactive_power"] * watt_hours,
        "voltage": frame["Voltage"],
        "intensity": frame["Global_intensity"],
        "sub1": frame["Sub_metering_1"],
        "sub2": frame["Sub_metering_2"],
        "sub3": frame["Sub_metering_3"],
        "dayofyear": _by_category(frame["Date"], _day_of_year) / 365.0,
        "timeofday": _by_category(frame["Time"], _minute_of_day) / 1440.0,
    }
    y = frame["Global_active_power"] * watt_hours - frame[_METERS].sum(axis=1)
    return _arrays(pd.DataFrame({**columns, "y": y}), list(columns), "y")


def _by_category(
    column: pd.Series[Any], function: Callable[[pd.Index[Any]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Apply a function to the distinct texts of a column and return one value per row."""
    return function(column.cat.categories)[column.cat.codes.to_numpy()]


def _day_of_year(dates: pd.Index[Any]) -> NDArray[np.float64]:
    return pd.to_datetime(dates, format="%d/%m/%Y").day_of_year.to_numpy(np.float64)


def _minute_of_day(times: pd.Index[Any]) -> NDArray[np.float64]:
    clock = pd.to_datetime(times, format="%H:%M:%S")
    return (clock.hour * 60 + clock.minute).to_numpy(np.float64)


# --- the tables ----------------------------------------------------------------------------------


def _zip(number: int, name: str, member: str, **rest: Any) -> Recipe:
    """Return the recipe of a zip archive of the UCI repository, saved as a browser would."""
    return Recipe(url=f"{_UCI}/{number}/{name}.zip", file=f"{name}.zip", member=member, **rest)


def _csv(number: int, name: str, **rest: Any) -> Recipe:
    """Return the recipe of the repository's ``data.csv``; its archive holds a spreadsheet."""
    return Recipe(url=f"{_UCI}/{number}/data.csv", file=f"{name}.csv", member=None, **rest)


_YACHT = (
    "buoyancy_position",
    "prismatic_coefficient",
    "length_displacement",
    "beam_draught",
    "length_beam",
    "froude_number",
    "residuary_resistance",
)
_CONCRETE = (
    "Cement",
    "Blast Furnace Slag",
    "Fly Ash",
    "Water",
    "Superplasticizer",
    "Coarse Aggregate",
    "Fine Aggregate",
    "Age",
    "Concrete compressive strength",
)
_WINE = (
    "fixed acidity",
    "volatile acidity",
    "citric acid",
    "residual sugar",
    "chlorides",
    "free sulfur dioxide",
    "total sulfur dioxide",
    "density",
    "pH",
    "sulphates",
    "alcohol",
    "quality",
)
_NAVAL = (
    "lp",
    "v",
    "GTT",
    "GTn",
    "GGn",
    "Ts",
    "Tp",
    "T48",
    "T1",
    "T2",
    "P48",
    "P1",
    "P2",
    "Pexh",
    "TIC",
    "mf",
    "kMc",
    "kMt",
)

#: Recipes by the name of the table.
RECIPES: Mapping[str, Recipe] = {
    "bike": _zip(
        275,
        "bike+sharing+dataset",
        "hour.csv",
        n=17_379,
        d=13,
        y_range=(1, 977),
        read=_bike,
        sha256="b70182d0d0508e9abbb79306ce5c0cec34869000f8220175ac83d11dbe845401",
    ),
    "concrete": _csv(
        165,
        "concrete",
        n=1030,
        d=8,
        y_range=(2, 83),
        read=partial(_plain, names=_CONCRETE, target=_CONCRETE[-1]),
        sha256="8d4b15b6fc68cd932d745cbd663d5ceae66dd54422e99c1e4865f2936ab7e2af",
    ),
    "ctslice": _zip(
        206,
        "relative+location+of+ct+slices+on+axial+axis",
        "slice_localization_data.csv",
        n=53_500,
        d=384,
        y_range=(0, 180),
        read=_ctslice,
    ),
    "energy": _csv(
        242,
        "energy",
        n=768,
        d=8,
        y_range=(6, 44),
        read=partial(
            _plain,
            names=("X1", "X2", "X3", "X4", "X5", "X6", "X7", "X8", "Y1", "Y2"),
            target="Y1",  # heating load
            drop=("Y2",),  # cooling load, a second target
        ),
        sha256="db44dbe453acd464b5cf65be2fb01a28aa9c5b2630300e65fbe28cde35f5d96f",
    ),
    "house_electric": _zip(
        235,
        "individual+household+electric+power+consumption",
        "household_power_consumption.txt",
        n=2_049_280,
        d=8,
        y_range=(-50, 200),
        read=_house_electric,
        sha256="9f84b46ade8a2d8e1286ec4b2b6c2987a45a755c59f263be3b3b3d10dfbda3ff",
    ),
    "naval": _zip(
        316,
        "condition+based+maintenance+of+naval+propulsion+plants",
        "UCI CBM Dataset/data.txt",
        n=11_934,
        d=16,
        y_range=(0.95, 1),
        read=partial(
            _plain,
            names=_NAVAL,
            target="kMc",  # decay of the compressor
            drop=("kMt",),  # decay of the turbine, a second target
            sep=r"\s+",
            header=False,
        ),
        sha256="91a3815da80b5ab7e2d5b82ac82f1c2cbf89182c7a65bcdf240db1e014423cb9",
    ),
    "poletele": _zip(
        189,
        "parkinsons+telemonitoring",
        "parkinsons_updrs.data",
        n=5875,
        d=19,
        y_range=(0, 176),
        read=_poletele,
    ),
    "power": _csv(
        294,
        "power",
        n=9568,
        d=4,
        y_range=(420, 496),
        read=partial(_plain, names=("AT", "V", "AP", "RH", "PE"), target="PE"),
        sha256="3c1fc11025f8424f8d95802d8b7086dffd3f73a552c6dcab3d973620986194b2",
    ),
    "protein": _zip(
        265,
        "physicochemical+properties+of+protein+tertiary+structure",
        "CASP.csv",
        n=45_730,
        d=9,
        y_range=(0, 21),
        read=partial(_plain, names=("RMSD", *(f"F{j}" for j in range(1, 10))), target="RMSD"),
        sha256="ee6536c8cc415dc50d66bd247af7c9bc95c187ab8a4ea0f1f546b127206c1100",
    ),
    "road3d": _zip(
        246,
        "3d+road+network+north+jutland+denmark",
        "3D_spatial_network.txt",
        n=434_874,
        d=2,
        y_range=(-20, 175),  # the highest ground of Denmark is 171 m
        read=_road3d,
    ),
    "song": _zip(
        203,
        "yearpredictionmsd",
        "YearPredictionMSD.txt",
        n=515_345,
        d=90,
        y_range=(1922, 2011),
        read=_song,
        test_from=463_715,  # as the source asks, so that no artist is in both parts
        sha256="06f801af323bb7798e800583acce4ea1ed2697ac12c23f4424aea0a7a3d09e11",
    ),
    "wine": _zip(
        186,
        "wine+quality",
        "winequality-red.csv",
        n=1599,
        d=11,
        y_range=(0, 10),
        read=partial(_plain, names=_WINE, target="quality", sep=";"),
        sha256="3ed56667f4b828242bd732d7d1dd7f2861e54432239d7fa63877014cbb0304d4",
    ),
    "yacht": _zip(
        243,
        "yacht+hydrodynamics",
        "yacht_hydrodynamics.data",
        n=308,
        d=6,
        y_range=(0, 63),
        read=partial(_plain, names=_YACHT, target=_YACHT[-1], sep=r"\s+", header=False),
    ),
}
