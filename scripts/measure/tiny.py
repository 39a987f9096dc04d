"""Writes a tiny model of the llama architecture with fixed random weights: `tiny.py FILE`. The vocabulary is the
printable ASCII characters and the tokens that chatml needs. So a text has one token per character, and a response has
the same tokens when it is sent back in a prompt. Runs in the environment of measure/llama.py."""
import sys

import gguf
import numpy

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, CONTEXT = 3, 256, 768, 4, 1, 8192
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def vocabulary():
    """All tokens with their types."""
    kind = gguf.TokenType
    bytes_ = [(f"<0x{byte:02X}>", kind.BYTE) for byte in range(256)]
    printable = ["\u2581", *map(chr, range(33, 127))]
    return [("<unk>", kind.UNKNOWN), *((text, kind.CONTROL) for text in CONTROL), *bytes_,
            *((text, kind.NORMAL) for text in printable)]


def write(path):
    tokens = vocabulary()
    draw = numpy.random.default_rng(1)
    model = gguf.GGUFWriter(path, "llama")
    model.add_name("tiny")
    model.add_context_length(CONTEXT)
    model.add_embedding_length(WIDTH)
    model.add_block_count(LAYERS)
    model.add_feed_forward_length(INNER)
    model.add_head_count(HEADS)
    model.add_head_count_kv(KV_HEADS)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_rope_dimension_count(WIDTH // HEADS)
    model.add_vocab_size(len(tokens))
    model.add_tokenizer_model("llama")
    model.add_token_list([text for text, _ in tokens])
    model.add_token_scores([0.0] * len(tokens))
    model.add_token_types([kind for _, kind in tokens])
    model.add_unk_token_id(0)
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)
    model.add_add_space_prefix(False)

    def tensor(name, *shape):
        model.add_tensor(name, (draw.standard_normal(shape) / numpy.sqrt(shape[-1])).astype(numpy.float32))

    ones = lambda name: model.add_tensor(name, numpy.ones(WIDTH, numpy.float32))
    tensor("token_embd.weight", len(tokens), WIDTH)
    narrow = WIDTH // HEADS * KV_HEADS
    for layer in range(LAYERS):
        of = lambda name: f"blk.{layer}.{name}.weight"
        ones(of("attn_norm"))
        tensor(of("attn_q"), WIDTH, WIDTH)
        tensor(of("attn_k"), narrow, WIDTH)
        tensor(of("attn_v"), narrow, WIDTH)
        tensor(of("attn_output"), WIDTH, WIDTH)
        ones(of("ffn_norm"))
        tensor(of("ffn_gate"), INNER, WIDTH)
        tensor(of("ffn_up"), INNER, WIDTH)
        tensor(of("ffn_down"), WIDTH, INNER)
    ones("output_norm.weight")
    # Responses consist of letters: all other tokens have the logit 0, which is never the maximum.
    letters = numpy.array([[len(text) == 1 and text.isascii() and text.isalpha()] for text, _ in tokens])
    output = draw.standard_normal((len(tokens), WIDTH)) / numpy.sqrt(WIDTH) * letters
    model.add_tensor("output.weight", output.astype(numpy.float32))
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


if __name__ == "__main__":
    write(sys.argv[1])
