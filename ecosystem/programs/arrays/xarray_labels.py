"""xarray: labelled arrays, selections, reductions, arithmetic by labels, and `apply_ufunc`."""

import numpy as np
import xarray as xr


def labelled(x):
    return xr.DataArray(x, dims=("time", "place"), coords={"time": np.arange(x.shape[0]), "place": ["a", "b", "c"]})


def cases():
    x = np.random.default_rng(0).normal(size=(12, 3))
    return {
        "mean": (lambda x: labelled(x).mean("time").data, (x,)),
        "max, min, sum, prod": (
            lambda x: [getattr(labelled(x), f)("place").data for f in ("max", "min", "sum", "prod")],
            (x,),
        ),
        "std, var": (lambda x: [labelled(x).std("time").data, labelled(x).var("time", ddof=1).data], (x,)),
        "arithmetic": (lambda x: ((labelled(x) - labelled(x).mean("time")) / 2.0 + labelled(x) ** 2).data, (x,)),
        "selection": (lambda x: labelled(x).sel(place="b").isel(time=slice(2, 7)).data, (x,)),
        "where": (lambda x: xr.where(labelled(x) > 0, labelled(x), 0.0).data, (x,)),
        "transpose and concat": (lambda x: xr.concat([labelled(x).T, labelled(x).T * 2], "time").data, (x,)),
        "dataset": (lambda x: xr.Dataset({"u": labelled(x), "v": labelled(x) * 3}).mean("time")["v"].data, (x,)),
        "apply_ufunc": (lambda x: xr.apply_ufunc(lambda a: a * a + 1.0, labelled(x)).data, (x,)),
        "astype and clip": (lambda x: labelled(x).astype("float32").clip(-0.5, 0.5).data, (x,)),
        "cumulative": (lambda x: labelled(x).cumsum("time").data, (x,)),
    }
