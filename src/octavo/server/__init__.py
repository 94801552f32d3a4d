"""HTTP: routes that clients of other servers take for the original, over `AsyncLLM`."""
