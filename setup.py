"""Packaging: the package, what it needs, and the ``.pth`` by which the stock ``onmt_*`` commands find the plugin."""

import os
import runpy

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = runpy.run_path(os.path.join(HERE, "onmt_entmax", "version.py"))["version"]()
PTH_NAME = "onmt_entmax.pth"
# One line that starts with "import"; after an uninstall that left it behind, Python must still start in silence.
PTH_LINE = (
    'import sys; exec("try:\\n import onmt_entmax.autoload\\n'
    "except ModuleNotFoundError as error:\\n if error.name != 'onmt_entmax': raise\")\n"
)


class BuildWithPth(build_py):
    """Also puts ``onmt_entmax.pth`` into the wheel, or into site-packages for ``pip install -e``."""

    def run(self):
        super().run()
        folder = self.build_lib
        if getattr(self, "editable_mode", False):
            folder = self.get_finalized_command("install").install_lib
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, PTH_NAME), "w", encoding="utf-8") as file:
            file.write(PTH_LINE)

    def get_outputs(self, include_bytecode=1):
        return [*super().get_outputs(include_bytecode), os.path.join(self.build_lib, PTH_NAME)]


with open(os.path.join(HERE, "README.md"), encoding="utf-8") as readme:
    LONG_DESCRIPTION = readme.read()

setup(
    name="onmt_entmax",
    version=VERSION,
    description="Sparse sequence-to-sequence models (alpha-entmax attention and output) for OpenNMT-py",
    long_description=LONG_DESCRIPTION,
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.9,<3.15",
    packages=find_packages(include=["onmt_entmax", "onmt_entmax.*"]),
    package_data={
        "onmt_entmax": ["py.typed"],
        "onmt_entmax.report": ["templates/*"],
        "onmt_entmax.inspect": ["static/*"],
    },
    classifiers=[
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(9, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    # These bounds give the stock stack, for Python 3.9 to 3.12. The modern one, for 3.10 to 3.14, is made by
    # scripts/install.sh, without OpenNMT-py's own pins: a package added here is added there too.
    install_requires=[
        "OpenNMT-py>=3.5.1,<3.6",
        "torch>=2.2",
        "numpy<2; python_version<'3.13'",
        "numba>=0.59",
        "pyyaml>=5.4",
        "rapidfuzz>=2.13",
        "sacrebleu>=2.3",
        "scipy>=1.7",
        "sacremoses>=0.1",
        "sentencepiece>=0.1.97",
        "subword-nmt>=0.3.8",
        "tqdm>=4.60",
        "matplotlib>=3.7",
        "jinja2>=3.0",
        "tabulate>=0.9",
        "tensorboard>=2.10",
        "flask>=2.2",
        "waitress>=2.1",
    ],
    extras_require={
        "workflow": ["snakemake>=8; python_version>='3.11'"],
        "japanese": ["mecab-python3", "ipadic"],
        "gpu": ["triton>=3.0; sys_platform == 'linux'"],  # PyTorch's builds for CUDA bring it
        # what some of OpenNMT-py's transforms need, beside its tokenizer
        "transforms": [
            "fasttext-wheel; python_version<'3.13'",
            "pyahocorasick",
            "pyonmttok>=1.37,<2; python_version<'3.13'",
            "spacy",
        ],
        "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.26", "latex2mathml>=3.77"],
        "test": [
            "pytest",
            "pytest-xdist",
            "hypothesis",
            "ruff",
            "mypy",
            "selenium>=4.10",  # the page of `inspect`, in Debian's chromium with chromium-driver
            "types-PyYAML",
            "types-tabulate",
            "entmax==1.3",
            "pyonmttok>=1.37,<2; python_version<'3.13'",  # our stand-in is compared with it
        ],
    },
    entry_points={"console_scripts": ["onmt_entmax = onmt_entmax.cli:main"]},
    cmdclass={"build_py": BuildWithPth},
)
