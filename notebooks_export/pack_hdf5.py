"""Stores HDF5 files smaller without changing an element: `python pack_hdf5.py FILE ...` rewrites them in place.

Chunks are deflated by zopfli (any HDF5 reader inflates them), shuffled or not, whichever is shorter; a dataset of one
chunk needs no index in HDF5 1.10's format; datasets with equal elements and attributes become one with several names.
Chunk shapes, attributes and links stay. Needs h5py, NumPy and zopfli.
"""

import itertools
import os
import sys
import zlib

import h5py
import numpy as np
import zopfli.zlib

SMALLEST_CHUNK = 256  # bytes; below that the description of the filters is longer than what they save


def shuffled(raw, size):
    return np.frombuffer(raw, np.uint8).reshape(-1, size).T.tobytes() if size > 1 else raw


def deflated(raw):
    """zopfli takes minutes over data that repeats, and gains little there."""
    quick = zlib.compress(raw, 9)
    return quick if 4 * len(quick) < len(raw) else zopfli.zlib.compress(raw)


def chunks_of(array, shape):
    """(offset, bytes) of each chunk; one that reaches over the edge is filled up with zeros."""
    for offset in itertools.product(*(range(0, n, c) for n, c in zip(array.shape, shape))):
        part = array[tuple(slice(o, o + c) for o, c in zip(offset, shape))]
        whole = np.zeros(shape, array.dtype)
        whole[tuple(slice(0, n) for n in part.shape)] = part
        yield offset, whole.tobytes()


def packed_chunks(array, shape):
    """[(offset, deflated bytes)] and whether they were shuffled: the shorter way."""
    chunks = list(chunks_of(array, shape))
    size = array.dtype.itemsize
    plain, mixed = (sum(len(zlib.compress(f(raw), 9)) for _, raw in chunks) for f in (bytes, lambda r: shuffled(r, size)))
    shuffle = mixed < plain
    return [(o, deflated(shuffled(raw, size) if shuffle else raw)) for o, raw in chunks], shuffle


def copy_attributes(source, target):
    for name in source.attrs:
        target.attrs.create(name, source.attrs[name], dtype=source.attrs.get_id(name).dtype)


def copy_dataset(source, parent, name):
    array = source[()]
    shape = source.chunks or source.shape
    if array.ndim == 0 or array.dtype.hasobject or np.prod(shape) * array.dtype.itemsize < SMALLEST_CHUNK:
        return parent.create_dataset(name, data=array, dtype=source.dtype)
    chunks, shuffle = packed_chunks(array, shape)
    if source.chunks is None and sum(len(c) for _, c in chunks) >= array.nbytes:
        return parent.create_dataset(name, data=array, dtype=source.dtype)
    target = parent.create_dataset(name, array.shape, source.dtype, chunks=shape, compression="gzip",
                                   compression_opts=9, shuffle=shuffle)
    for offset, chunk in chunks:
        target.id.write_direct_chunk(offset, chunk)
    return target


def contents(dataset):
    attributes = [(n, str(dataset.attrs[n])) for n in sorted(dataset.attrs)]
    return str(dataset.dtype), dataset.shape, str(attributes), np.asarray(dataset[()]).tobytes()


def copy_group(source, target, stored):
    copy_attributes(source, target)
    for name, item in source.items():
        if isinstance(item, h5py.Group):
            copy_group(item, target.create_group(name), stored)
            continue
        key = contents(item)
        if key in stored:
            target[name] = stored[key]
        else:
            stored[key] = copy_dataset(item, target, name)
            copy_attributes(item, stored[key])


def equal(a, b):
    """Whether two files hold the same names, elements and attributes."""
    if sorted(a.attrs) != sorted(b.attrs) or any(not np.array_equal(a.attrs[n], b.attrs[n]) for n in a.attrs):
        return False
    if isinstance(a, h5py.Group):
        return sorted(a) == sorted(b) and all(equal(a[n], b[n]) for n in a)
    return a.dtype == b.dtype and a.shape == b.shape and a[()].tobytes() == b[()].tobytes()


def pack(path):
    packed = path + ".packed"
    with h5py.File(path) as source:
        with h5py.File(packed, "w", libver="v110") as target:
            copy_group(source, target, {})
        with h5py.File(packed) as target:
            if not equal(source, target):
                raise ValueError(f"{path}: packing changed it")
    before, after = os.path.getsize(path), os.path.getsize(packed)
    if after < before:
        os.replace(packed, path)
    else:
        os.remove(packed)
    print(f"{path}: {before} -> {min(before, after)} bytes", flush=True)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        pack(each)
