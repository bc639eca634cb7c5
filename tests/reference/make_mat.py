"""Writes tests/fixtures/mat: small files of MATLAB with the structure of ImageNet's meta.mat and of Oxford Flowers'
imagelabels.mat and setid.mat, for tests/project/test_prepare.sh.  Needs scipy.

    python3 tests/reference/make_mat.py
"""

import argparse
import os

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

import numpy as np
from scipy.io import savemat

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "mat")
FIELDS = ("ILSVRC2012_ID", "WNID", "words", "num_children", "children")
SYNSETS = [(1, "n00000003", "ant, a word", 0, []), (2, "n00000001", "bee", 0, []), (3, "n00000002", "cat", 0, []),
           (4, "n00000004", "animal", 3, [1, 2, 3])]


def main():
    os.makedirs(FOLDER, exist_ok=True)
    synsets = np.zeros((len(SYNSETS), 1), dtype=[(field, object) for field in FIELDS])
    for i, (number, *rest) in enumerate(SYNSETS):
        synsets[i, 0] = (np.array([[float(number)]]), rest[0], rest[1], np.array([[float(rest[2])]]), np.array([rest[3]], float))
    savemat(os.path.join(FOLDER, "meta.mat"), {"synsets": synsets})
    savemat(os.path.join(FOLDER, "imagelabels.mat"), {"labels": np.array([[2, 1, 1, 2, 3, 3]], np.uint8)},
            do_compression=True)
    savemat(os.path.join(FOLDER, "setid.mat"), {"trnid": np.array([[1, 3, 6]], np.uint16),
                                                "valid": np.array([[4]], np.uint16),
                                                "tstid": np.array([[2, 5]], np.uint16)}, do_compression=True)


if __name__ == "__main__":
    main()
