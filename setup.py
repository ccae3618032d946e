from setuptools import setup

setup(name="onmt_entmax")
