"""Variational autoencoders with binary latents, trained by evolution and Adam, without an encoder network."""

__version__ = "0.1.0"
