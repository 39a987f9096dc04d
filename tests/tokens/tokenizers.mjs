// The tokenizers that estimates are compared with: OpenAI's o200k_base and cl100k_base, and the one that Anthropic has
// published. TOKENIZERS is a folder with the npm packages `tiktoken` and `@anthropic-ai/tokenizer`.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';

const require = createRequire(resolve(process.env.TOKENIZERS, 'node_modules', 'here.js'));
const { Tiktoken } = require('tiktoken/lite');

function vocabulary({ bpe_ranks, special_tokens, pat_str }) {
  return new Tiktoken(bpe_ranks, special_tokens, pat_str);
}

const o200k = vocabulary(require('tiktoken/encoders/o200k_base.json'));
const cl100k = vocabulary(require('tiktoken/encoders/cl100k_base.json'));
const anthropic = vocabulary(require('@anthropic-ai/tokenizer/claude.json'));

// Returns the number of tokens by tokenizer.
export function counts(text) {
  return {
    o200k: o200k.encode_ordinary(text).length,
    cl100k: cl100k.encode_ordinary(text).length,
    anthropic: anthropic.encode_ordinary(text.normalize('NFKC')).length,
  };
}
