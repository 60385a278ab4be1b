"""Loads pretrained text encoders of the library transformers (the extra `text`), from a folder or the Hugging Face Hub."""

from typing import Any

from ensemble.errors import UserError


def load(kind: str, name: str) -> Any:
    """Load an "AutoTokenizer" or "AutoModel", from a folder or the Hub.

    Raises `UserError` if a library or the files are missing, if a file is damaged, or if the tokenizer has no padding token.
    A model is returned with float32 weights. Of a model with an encoder and a decoder, such as T5, the encoder is returned.
    The padding id in the configuration of a model is set to that of its tokenizer.
    """
    try:
        import transformers
    except ImportError:
        raise UserError("a pretrained text encoder needs transformers: pip install 'accelerate-ensemble[text]'") from None
    try:
        loaded = getattr(transformers, kind).from_pretrained(name)
    except Exception as error:  # each library has its own classes for a damaged file
        if isinstance(error, MemoryError | RuntimeError) and "mismatched_sizes" not in str(error):
            raise  # `errors.run` explains that memory is short
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the text encoder '{name}' cannot be read as a folder or downloaded ({reason}): give another folder"
        ) from None
    if kind == "AutoTokenizer" and loaded.pad_token is None:
        raise UserError(
            f"the tokenizer of '{name}' has no padding token, which texts of different lengths need: give another"
        )
    if kind == "AutoModel" and loaded.config.is_encoder_decoder:
        loaded = loaded.get_encoder()
    if kind == "AutoModel":  # texts are padded by the tokenizer, and the configuration of a model may have no or another id
        loaded.config.pad_token_id = load("AutoTokenizer", name).pad_token_id
        loaded.float()  # transformers keeps the type of the file, which may be bfloat16
    return loaded
