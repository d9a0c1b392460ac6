import anndata
import numpy as np
import pandas as pd
import scipy.sparse

PACKAGES = ["anndata"]


def write(path, zarr_format):
    anndata.settings.zarr_write_format = zarr_format
    rng = np.random.default_rng(0)
    obs = pd.DataFrame(
        {"n": np.arange(8), "kind": pd.Categorical(list("abababab"))}, index=[f"cell{i}" for i in range(8)]
    )
    table = anndata.AnnData(
        X=scipy.sparse.random(8, 5, 0.4, format="csr", random_state=0, dtype="f4"),
        obs=obs,
        var=pd.DataFrame({"flag": [True, False] * 2 + [True]}, index=[f"gene{i}" for i in range(5)]),
        obsm={"pca": rng.normal(size=(8, 2))},
        layers={"dense": rng.integers(0, 9, (8, 5))},
        uns={"title": "t", "number": 3},
    )
    table.write_zarr(path)


def read(path):
    table = anndata.read_zarr(path)
    return {
        "X/data": table.X.data,
        "X/indices": table.X.indices,
        "X/indptr": table.X.indptr,
        "obs/n": np.asarray(table.obs["n"]),
        "obs/kind/codes": np.asarray(table.obs["kind"].cat.codes),
        "obs/kind/categories": np.asarray(table.obs["kind"].cat.categories, dtype="U"),
        "obs/_index/values": np.asarray(table.obs_names, dtype="U"),
        "var/flag": np.asarray(table.var["flag"]),
        "obsm/pca": table.obsm["pca"],
        "layers/dense": table.layers["dense"],
        "uns/number": np.asarray(table.uns["number"]),
    }
