"""Writes prefab files as web-rwkv's example `serde` does: the struct of a model in CBOR."""

from typing import Any

import numpy as np

MATRICES = {"key": "w_k", "value": "w_v", "receptance": "w_r", "gate": "w_g", "output": "w_o"}
NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
       0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]  # fmt: skip
Arrays = dict[str, np.ndarray]


def cbor(value: Any) -> bytes:
    """Encodes a whole number, a text, bytes, a list or a map."""
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        return _head(3, len(value)) + value.encode()
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(map(cbor, value))
    return _head(5, len(value)) + b"".join(cbor(name) + cbor(one) for name, one in value.items())


def _head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind * 32 + number])
    size = next(i for i in range(4) if number < 1 << (8 << i))
    return bytes([kind * 32 + 24 + size]) + number.to_bytes(1 << size, "big")


def blob(array: np.ndarray, dtype: str = "<f2") -> dict[str, Any]:
    """Returns a tensor; its shape begins with the dimension that varies fastest."""
    shape = [*array.shape[::-1], 1, 1, 1, 1][:4]
    return {"shape": shape, "data": array.astype(dtype).tobytes()}


def matrix(array: np.ndarray, kind: str) -> dict[str, Any]:
    """Returns a matrix as Fp16, Int8 or Fp4."""
    if kind == "Fp16":
        return {"Fp16": blob(array)}
    block = 128 if kind == "Int8" else 64
    blocks = array.reshape(-1, block)
    if kind == "Int8":
        ranges = np.stack([blocks.min(-1), blocks.max(-1)], -1).astype(np.float16)
        low, high = ranges.astype(np.float32).T[..., None]
        codes = np.rint((blocks - low) / (high - low) * 255).astype(np.uint8)
        return {"Int8": {"w": blob(codes.reshape(array.shape), "u1"), "m": blob(ranges.reshape(-1))}}
    ranges = np.abs(blocks).max(-1).astype(np.float16)
    codes = np.abs((blocks / ranges[:, None])[..., None] - np.float32(NF4)).argmin(-1).astype(np.uint8)
    packed = codes.reshape(-1, 2) @ np.uint8([1, 16])
    return {kind: {
        "q": blob(np.float32(NF4), "<f4"), "w": blob(packed.reshape(array.shape[0], -1), "u1"), "m": blob(ranges),
    }}  # fmt: skip


def norm(arrays: Arrays, name: str) -> dict[str, Any]:
    return {"w": blob(arrays[f"{name}.weight"]), "b": blob(arrays[f"{name}.bias"])}


def version_of(arrays: Arrays) -> str:
    marks = {"r_k": "V7", "time_maa_x": "V6", "gate.weight": "V5", "time_first": "V4"}
    return next(version for mark, version in marks.items() if f"blocks.0.att.{mark}" in arrays)


def prefab(arrays: Arrays, kind: str = "Fp16", rescale: int | None = 1024) -> bytes:
    """Returns the file of a checkpoint in BlinkDL's format. Matrices of layer 1 are `kind`."""
    version = version_of(arrays)
    layers = 1 + max(int(name.split(".")[1]) for name in arrays if name.startswith("blocks."))
    heads = 1 if version == "V4" else len(arrays["blocks.0.att." + ("r_k" if version == "V7" else "time_faaaa")])
    info = {"version": version, "num_layer": layers, "num_emb": arrays["emb.weight"].shape[1],
            "num_hidden": len(arrays["blocks.0.ffn.key.weight"]), "num_vocab": len(arrays["emb.weight"]),
            "num_head": heads, "custom": {"V7": {"w": 8, "a": 8, "g": 8, "v": 8}}}  # fmt: skip
    ln = "ln" if version == "V7" else "layer_norm"
    tensor = {
        "embed": {ln: norm(arrays, "blocks.0.ln0"), "w": blob(arrays["emb.weight"])},
        "head": {ln: norm(arrays, "ln_out"), "w": matrix(arrays["head.weight"], "Fp16")},
        "layers": [_layer(arrays, i, kind if i else "Fp16", rescale or 6, version) for i in range(layers)],
    }
    more = {} if rescale is None else {"rescale": rescale, "sep": 1024}
    return cbor({"context": [], "info": info, **more, "tensor": tensor})


def _layer(arrays: Arrays, i: int, kind: str, rescale: int, version: str) -> dict[str, Any]:
    at, scale, mix = f"blocks.{i}", 2.0 ** -(i // rescale), "time_maa" if version == "V6" else "time_mix"

    def matrices(part: str, names: str) -> dict[str, Any]:
        halved = {"att": "output", "ffn": "value"}[part]
        return {MATRICES[name]: matrix(arrays[f"{at}.{part}.{name}.weight"] * (scale if name == halved else 1), kind)
                for name in names.split()}  # fmt: skip

    def taken(part: str, names: str) -> dict[str, Any]:
        return {name: blob(arrays[f"{at}.{part}.{name.replace('time_mix', mix)}"].reshape(-1))
                for name in names.split()}  # fmt: skip

    def low(name: str) -> dict[str, Any]:
        return {"Fp16": blob(arrays[f"{at}.att.{name}"].swapaxes(-1, -2))}

    ln_x = {} if version == "V4" else {"w": "weight", "b": "bias"}
    gn = {end: blob(arrays[f"{at}.att.ln_x.{name}"].reshape(-1, 16)) for end, name in ln_x.items()}
    if version == "V7":
        att = taken("att", "x_r x_w x_k x_v x_a x_g w0 a0 v0 k_k k_a")
        att |= {f"{letter}{n}": low(f"{letter}{n}") for letter in "wagv" for n in (1, 2)}
        att |= {"r_k": blob(arrays[f"{at}.att.r_k"]), **matrices("att", "key value receptance output"), "gn": gn}
        ffn = taken("ffn", "x_k") | matrices("ffn", "key value")
        return {"att_ln": norm(arrays, f"{at}.ln1"), "ffn_ln": norm(arrays, f"{at}.ln2"), "att": att, "ffn": ffn}
    first = "time_first" if version == "V4" else "time_faaaa"
    att = {"time_first": blob(arrays[f"{at}.att.{first}"].reshape(-1), "<f4")}
    if version == "V6":
        rows = np.concatenate([arrays[f"{at}.att.time_maa_{letter}"].reshape(1, 1, -1) for letter in "wkvrg"])
        att |= taken("att", "time_decay time_mix_x") | {"time_mix": blob(rows)}
        att |= {f"{name}{n}": low(name.replace("mix", "maa") + str(n)) for name in ("time_decay_w", "time_mix_w")
                for n in (1, 2)}  # fmt: skip
    else:
        exponent = -np.exp(arrays[f"{at}.att.time_decay"].reshape(-1).astype(np.float64))
        att |= {"time_decay": blob(exponent if version == "V4" else np.exp(exponent), "<f4")}
        att |= taken("att", "time_mix_k time_mix_v time_mix_r" + (" time_mix_g" if version == "V5" else ""))
    att |= matrices("att", "key value receptance output") | ({"group_norm": gn} if gn else {})
    att |= {} if version == "V4" else matrices("att", "gate")
    ffn = taken("ffn", "time_mix_k time_mix_r") | matrices("ffn", "receptance key value")
    return {"att_layer_norm": norm(arrays, f"{at}.ln1"), "ffn_layer_norm": norm(arrays, f"{at}.ln2"),
            "att": att, "ffn": ffn}  # fmt: skip
