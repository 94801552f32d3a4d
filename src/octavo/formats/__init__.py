"""Files into arrays: GGUF, tokenizers, chat templates, model references and downloads."""
