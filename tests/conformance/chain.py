"""The scripted model behind two gateways in a row. The outer one reaches the inner one in each format, and the inner
one translates back to the model's format."""

import os
import pathlib

import gateway
import model

CONFIG = pathlib.Path(__file__).parent / "model.toml"


class Chain:
    def __init__(self):
        self.model = model.Model()
        os.environ["CHAIN_KEY"] = "unused"
        self.inner = gateway.Gateway(CONFIG, self.model.address)
        os.environ["CHAIN_KEY"] = self.inner.key
        self.outer = gateway.Gateway(CONFIG, self.inner.gateway)
        self.gateway, self.key = self.outer.gateway, self.outer.key

    def stop(self):
        """Ends the gateways; returns their exit codes."""
        codes = self.outer.stop() + self.inner.stop()
        self.model.stop()
        return codes
