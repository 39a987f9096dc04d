"""LlamaIndex's embeddings, which require an older `openai` package than the others."""

import math
import unittest

from llama_index.embeddings.openai import OpenAIEmbedding

GATEWAY = None


class Embeddings(unittest.TestCase):
    def test_texts_and_queries(self):
        known = {"api_base": f"http://{GATEWAY.gateway}/v1", "api_key": GATEWAY.key, "max_retries": 0}
        vectors = OpenAIEmbedding(model_name="wide", **known)
        one = vectors.get_text_embedding("red fox")
        self.assertAlmostEqual(math.fsum(part * part for part in one), 1.0, places=5)
        many = vectors.get_text_embedding_batch(["red fox", "a dog"])
        self.assertEqual([one, vectors.get_query_embedding("a dog")], many)
