"""LangChain's standard tests of chat models and embeddings: each client format with each provider shape.
Tests of images are left out, since they fetch the images from the internet.

GATEWAY is the address, GATEWAY_KEY the key.
"""

import os

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

URL = f"http://{os.environ['GATEWAY']}"
KEY = os.environ["GATEWAY_KEY"]
OPENAI = {"base_url": f"{URL}/v1", "api_key": KEY}
CLIENTS = {
    "Chat": (ChatOpenAI, {**OPENAI, "use_responses_api": False, "stream_usage": True}),
    "Responses": (ChatOpenAI, {**OPENAI, "use_responses_api": True}),
    "Messages": (ChatAnthropic, {"base_url": URL, "api_key": KEY}),
}


def suite_of(client, upstream):
    kind, options = CLIENTS[client]
    model = f"gpt-5-{upstream}"
    members = {
        "chat_model_class": property(lambda self: kind),
        "chat_model_params": property(lambda self: {**options, "model": model}),
        "model_override_value": property(lambda self: "gpt-5-chat"),
        "supports_json_mode": property(lambda self: client == "Chat"),
    }
    return type(f"Test{client}At{upstream.title()}", (ChatModelIntegrationTests,), members)


for client in CLIENTS:
    for upstream in ["chat", "messages", "responses"]:
        suite = suite_of(client, upstream)
        globals()[suite.__name__] = suite
del suite


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self):
        return {**OPENAI, "model": "gpt-5-chat", "check_embedding_ctx_length": False}
