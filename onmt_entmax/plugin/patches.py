"""Every name of OpenNMT-py that we rebind: who owns it, what takes its place, and why.

:func:`onmt_entmax.register` walks the table once, when ``import onmt`` has run. Nothing else in this package changes
anything of OpenNMT-py's.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from onmt_entmax.plugin import checkpoints, corpora, heads, models, options, parsing, releasing, standins
from onmt_entmax.plugin.modules import Encoder, InputFeedDecoder, MaskedCNNDecoder, MaskedCNNEncoder, StandardDecoder
from onmt_entmax.plugin.options import extended, validating
from onmt_entmax.plugin.parsing import one_line_errors
from onmt_entmax.plugin.train import data, main, processes
from onmt_entmax.plugin.train.options import add_training_options, validate_training
from onmt_entmax.plugin.translate import server, written
from onmt_entmax.plugin.translate.options import add_decoding_options, validate_translate
from onmt_entmax.plugin.translate.translator import SparseTranslator


class Patch(NamedTuple):
    """One rebound name.

    Attributes:
        owner: a module, a class (``module:Class``) or a dictionary (``module:name``) of OpenNMT-py.
        name: of the attribute, or key of the dictionary.
        make: from what stood there to what stands there now.
        why: a fault of OpenNMT-py that it mends, or what it adds.
    """

    owner: str
    name: str
    make: Callable[[Any], Any]
    why: str


def _instead(ours: Any) -> Callable[[Any], Any]:
    """Take the place of what stood there, whatever it was."""
    return lambda stock: ours


_PARSER = "onmt.utils.parse:ArgumentParser"
_SERVER = "onmt.translate.translation_server"
_ENGINE = "onmt.inference_engine:InferenceEnginePY"

TABLE = (
    # options
    Patch("onmt.opts", "model_opts", extended(options.add_model_options), "adds the alphas"),
    Patch("onmt.opts", "_add_decoding_opts", extended(add_decoding_options), "adds search options"),
    Patch(
        "onmt.opts",
        "_add_train_general_opts",
        extended(add_training_options),
        "adds `valid_loss`, `keep_best` and others",
    ),
    Patch("onmt.opts", "train_opts", parsing.train_opts, "marks the parser whose unknown keys are errors"),
    Patch("onmt.opts", "data_prepare_opts", parsing.data_prepare_opts, "the same for `onmt_build_vocab`"),
    Patch(_PARSER, "parse_known_args", parsing.parse_known_args, "`onmt_train` ignores unknown keys in silence"),
    Patch(_PARSER, "error", parsing.error, "a mistake is one line with the nearest valid name, not 200 lines of usage"),
    Patch(_PARSER, "_get_option_tuples", options.get_option_tuples, "keeps stock's abbreviations unambiguous"),
    Patch(_PARSER, "validate_prepare_opts", validating(options.validate_vocabulary), "assertions become one line"),
    Patch(_PARSER, "validate_model_opts", validating(options.validate_model), "checks alphas"),
    Patch(_PARSER, "ckpt_model_opts", options.noting_attention, "decoding replaces `self_attn_type: average`"),
    Patch(_PARSER, "validate_translate_opts", validating(validate_translate), "`n_best` > `beam_size`"),
    Patch(_PARSER, "validate_train_opts", validating(validate_training), "checks early"),
    # packages that are missing
    Patch(_PARSER, "_validate_transforms_opts", standins.validate_transforms, "names what a transform lacks"),
    Patch("onmt.transforms.transform:Transform", "__init__", standins.transform_init, "the same in translation"),
    Patch(f"{_SERVER}:ServerModel", "build_tokenizer", standins.build_tokenizer, "the same in the server"),
    Patch("onmt.inference_engine:InferenceEngineCT2", "__init__", standins.with_vocabulary, "imports pyonmttok"),
    # reading of data
    Patch(
        _PARSER,
        "_validate_file",
        _instead(staticmethod(one_line_errors(corpora.check_file))),
        "names a missing file in one line",
    ),
    Patch(_PARSER, "_validate_data", corpora.validate_data, "sides of different length lose their surplus in silence"),
    Patch(
        "onmt.inputters.inputter",
        "_read_vocab_file",
        _instead(one_line_errors(corpora.read_vocabulary)),
        "Unicode blanks crash it",
    ),
    Patch("onmt.inputters.text_corpus", "parse_features", corpora.parse_features, "U+FFE8 in a text crashes it"),
    Patch("onmt.inputters.text_corpus:ParallelCorpusIterator", "_process", corpora.process_stream, "strips tokens"),
    Patch("onmt.inputters.text_corpus", "exfile_open", _instead(data.open_corpus), "leaves files open"),
    Patch("onmt.inputters.dynamic_iterator", "process", corpora.process_bucket, "a bucket of blank lines crashes it"),
    Patch("onmt.inputters.text_utils", "numericalize", corpora.numericalize, "a blank counts as a token"),
    Patch("onmt.inputters.dynamic_iterator", "numericalize", corpora.numericalize, "the same, bound here too"),
    Patch("onmt.inputters.text_utils", "tensorify", corpora.tensorify, "forgets unknown tokens as they were given"),
    Patch("onmt.inputters.dynamic_iterator", "tensorify", corpora.tensorify, "the same, bound here too"),
    Patch(
        "onmt.inputters.dynamic_iterator:DynamicDatasetIter",
        "_tuple_to_json_with_tokIDs",
        corpora.read_bucket,
        "lines that a transform leaves out vanish when decoding, and a prefix fills blank ones",
    ),
    Patch("onmt.transforms.misc:FilterTooLongTransform", "apply", corpora.filter_too_long, "needs a target"),
    # checkpoints and models
    Patch("onmt.models.model_saver", "load_checkpoint", checkpoints.load_checkpoint, "one line for what can't load"),
    Patch("onmt.model_builder", "load_checkpoint", checkpoints.load_checkpoint, "the same, bound here too"),
    Patch("onmt.train_single", "load_checkpoint", checkpoints.load_checkpoint, "the same, bound here too"),
    Patch("onmt.bin.average_models", "average_models", _instead(releasing.average_models), "averages what differs"),
    Patch("onmt.bin.average_models", "main", _instead(releasing.average_main), "a bad checkpoint is a traceback"),
    Patch("onmt.bin.release_model", "main", _instead(releasing.release_main), "keeps our state of training"),
    Patch("onmt.model_builder", "build_base_model", models.build_base_model, "alphas of output layer and heads"),
    Patch("onmt.model_builder", "build_model", models.build_model, "`param_init` re-initialises learned alphas"),
    Patch(
        "onmt.modules.embeddings:Embeddings",
        "load_pretrained_vectors",
        models.load_pretrained_vectors,
        "`param_init_glorot` draws embeddings of large vocabularies too small",
    ),
    Patch("onmt.models.model:BaseModel", "load_state_dict", models.load_state_dict, "shared parameters cannot load"),
    Patch(
        "onmt.modules.alibi_position_bias:AlibiPositionalBias",
        "forward",
        heads.alibi,
        "decoding after training takes a wrong row",
    ),
    Patch("onmt.encoders.transformer", "sequence_mask", heads.sequence_mask, "each batch waits for the device"),
    Patch("onmt.modules.weight_norm", "get_var_maybe_avg", models.get_var_maybe_avg, "decoding changes the weights"),
    Patch("onmt.decoders.ensemble", "load_test_model", models.load_ensemble, "members may differ in alpha"),
    Patch("onmt.encoders:str2enc", "rnn", _instead(Encoder), "the encoder with our engines"),
    Patch("onmt.encoders:str2enc", "brnn", _instead(Encoder), "the encoder with our engines"),
    Patch("onmt.encoders:str2enc", "cnn", _instead(MaskedCNNEncoder), "padding changes results"),
    Patch("onmt.decoders:str2dec", "cnn", _instead(MaskedCNNDecoder), "attends to padding"),
    Patch("onmt.decoders:str2dec", "rnn", _instead(StandardDecoder), "our attention"),
    Patch("onmt.decoders:str2dec", "ifrnn", _instead(InputFeedDecoder), "our attention, unrolled"),
    # training
    Patch("onmt.utils.misc", "set_random_seed", _instead(processes.set_seed), "takes the seed 0 for none"),
    Patch("onmt.train_single", "main", _instead(main.main), "ours: exact resuming, one validation for all processes"),
    # decoding
    Patch("onmt.translate.translator", "build_translator", written.build_translator, "a half-written output file"),
    Patch("onmt.translate.translator", "Translator", _instead(SparseTranslator), "our search"),
    Patch("onmt.translate", "Translator", _instead(SparseTranslator), "the same, bound here too"),
    Patch("onmt.utils.scoring_utils", "Translator", _instead(SparseTranslator), "the same, bound here too"),
    Patch(f"{_SERVER}:TranslationServer", "start", server.start, "a broken configuration is a traceback"),
    Patch(f"{_SERVER}:TranslationServer", "run", server.run, "certificates in answers; `-Infinity` is no JSON"),
    Patch(f"{_SERVER}:TranslationServer", "clone_model", _instead(server.clone_model), "always crashes"),
    Patch(f"{_SERVER}:TranslationServer", "unload_model", server.unload_model, "answers mistakes with status 200"),
    Patch(f"{_SERVER}:ServerModel", "load", server.load, "a model that cannot be loaded lets requests wait"),
    Patch(f"{_SERVER}:ServerModel", "unload", server.unload, "crashes without a loaded model"),
    Patch(f"{_SERVER}:ServerModel", "to_cpu", server.if_loaded, "crashes without a loaded model"),
    Patch(f"{_SERVER}:ServerModel", "to_gpu", server.to_gpu, "crashes without a loaded model or a GPU"),
    Patch(f"{_SERVER}:ServerModel", "parse_opt", server.parse_opt, "takes `false` for true"),
    Patch(f"{_SERVER}:ServerModel", "maybe_detokenize_with_align", server.split_alignment, "`report_align` crashes it"),
    Patch(_SERVER, "parse_features", corpora.parse_features, "U+FFE8 in a text crashes it"),
    Patch(_SERVER, "build_translator", server.build_translator, "weights of alignments in answers"),
    Patch(_SERVER, "textbatch_to_tensor", server.textbatch_to_tensor, "a `ref` in some inputs only crashes it"),
    Patch(_ENGINE, "__init__", one_line_errors, "a user's mistake takes one line"),
    Patch("onmt.inference_engine:InferenceEngine", "infer_list", written.infer_list, "no lines read the file `src`"),
    Patch(_ENGINE, "_translate", one_line_errors, "a user's mistake takes one line"),
    Patch(_ENGINE, "terminate", written.terminate, "leaves the output file open"),
)


_applied = False


def is_registered() -> bool:
    """Whether :func:`apply` has run in this process."""
    return _applied


def apply() -> None:
    """Rebind every name of the table, once; later calls return at once.

    Raises:
        AttributeError: OpenNMT-py has no such name.
    """
    global _applied
    if _applied:
        return
    _applied = True
    # torch 2.6 and newer load plain data only; a checkpoint's options are an argparse.Namespace. Loading stays safe.
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([argparse.Namespace])
    for patch in TABLE:
        rebind(pkgutil.resolve_name(patch.owner), patch.name, patch.make)
    releasing.serve_modules()
    # only where OpenNMT-py has loaded CTranslate2 to export models
    if "ctranslate2" in sys.modules:
        checkpoints.refuse_exports(rebind)


def rebind(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(what stands there)`` in the place of ``owner.name``, or of the dictionary's entry.

    Raises:
        AttributeError: there is no such name.
    """
    if isinstance(owner, dict):
        if name not in owner:
            raise AttributeError(f"it has no kind {name!r} of model")
        owner[name] = make(owner[name])
        return
    own = owner.__dict__ if isinstance(owner, type) else {}  # a classmethod as it is, not bound
    setattr(owner, name, make(own[name] if name in own else getattr(owner, name)))
