// The cases of the matrix and their results with both families of SDK: one neutral answer for each kind of request.
// Used by suite_matrix. Sends and records only; does not judge the results.

import { load } from './gateway.mjs';

const { OpenAI } = load('openai');
const { Anthropic } = load('@anthropic-ai/sdk');
const { jsonSchemaOutputFormat } = load('@anthropic-ai/sdk/helpers/json-schema');

export const PNG = 'iVBORw0KGgo=';
export const EXPLANATION = 'The simulated provider was told to refuse.';
export const MODES = ['whole', 'stream', 'helper'];
export const PARAMETERS = { type: 'object', properties: { city: { type: 'string' }, n: { type: 'integer' } } };
export const SCHEMA = {
  type: 'object',
  properties: { city: { type: 'string' }, number: { type: 'integer' } },
  required: ['city', 'number'],
  additionalProperties: false,
};

/** The rows of the matrix, in a neutral form. */
export const CASES = [
  { name: 'text', say: 'one two\n#sim tokens=6' },
  { name: 'system', say: 'one two\n#sim tokens=6', system: 'be brief' },
  { name: 'one tool', say: 'go\n#sim tool', tools: ['look'] },
  { name: 'three parallel tools', say: 'go\n#sim tool calls=3 tokens=2', tools: ['look', 'read', 'list'] },
  { name: 'tool results', say: 'go on\n#sim report', tools: ['seek'], history: true },
  { name: 'image in', say: 'what?\n#sim tokens=3', image: true },
  { name: 'thinking', say: 'hm\n#sim think=5 tokens=4', think: true },
  { name: 'JSON schema', say: 'where', schema: true },
  { name: 'stop by length', say: 'x\n#sim tokens=30', maxTokens: 16 },
  {
    name: 'stop sequence',
    say: 'x',
    stop: 'made',
    notApplicable: { responses: 'the responses format has no stop sequences' },
  },
  { name: 'refusal', say: 'x\n#sim refuse tokens=4' },
  { name: 'error before', say: 'x\n#sim status=529 message=too_much' },
  {
    name: 'error in the middle',
    say: 'x\n#sim tokens=9 error_after=3',
    notApplicable: { whole: 'a complete response is relayed only when all of it has arrived' },
  },
];

/** An empty result, in a neutral form. */
const nothing = () => ({ text: '', thought: '', refusal: null, calls: [], ids: [], stop: null, sequence: null });

/** The `openai` package. */
export class OpenAi {
  static error = OpenAI.APIError;
  static refused = OpenAI.InternalServerError;

  constructor(gateway) {
    const baseURL = `${gateway.url}/v1`;
    this.completions = new OpenAI({ apiKey: gateway.key, baseURL, maxRetries: 0, timeout: 60_000 }).chat.completions;
  }

  request(row, model) {
    const image = { type: 'image_url', image_url: { url: `data:image/png;base64,${PNG}` } };
    const messages = row.system ? [{ role: 'system', content: row.system }] : [];
    if (row.history) {
      const call = (id) => ({ id, type: 'function', function: { name: 'seek', arguments: '{"n":1}' } });
      messages.push(
        { role: 'user', content: 'seek both' },
        { role: 'assistant', tool_calls: [call('c1'), call('c2')] },
        { role: 'tool', tool_call_id: 'c1', content: 'seen' },
        { role: 'tool', tool_call_id: 'c2', content: 'it broke' },
      );
    }
    const content = row.image || row.history ? [image, { type: 'text', text: row.say }] : row.say;
    const asked = { model, max_tokens: row.maxTokens ?? 4000, messages: [...messages, { role: 'user', content }] };
    const tool = (name) => ({ type: 'function', function: { name, description: 'a tool', parameters: PARAMETERS } });
    if (row.tools) asked.tools = row.tools.map(tool);
    if (row.think) asked.reasoning_effort = 'low';
    if (row.schema) {
      asked.response_format = { type: 'json_schema', json_schema: { name: 'place', strict: true, schema: SCHEMA } };
    }
    if (row.stop) asked.stop = [row.stop];
    return asked;
  }

  async whole(row, asked) {
    return this.read(await this.completions.create(asked));
  }

  read({ id, model, choices: [choice], usage }) {
    const calls = choice.message.tool_calls ?? [];
    return {
      ...nothing(),
      id,
      model,
      text: choice.message.content ?? '',
      thought: choice.message.reasoning_content ?? '',
      refusal: choice.message.refusal,
      calls: calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
      ids: calls.map((call) => call.id),
      stop: choice.finish_reason,
      ...this.cost(usage),
    };
  }

  cost(usage) {
    return {
      prompt: usage.prompt_tokens,
      completion: usage.completion_tokens,
      thinkingTokens: usage.completion_tokens_details?.reasoning_tokens,
    };
  }

  async stream(row, asked) {
    const [answer, names, texts] = [nothing(), [], []];
    const more = { stream: true, stream_options: { include_usage: true } };
    const stream = await this.completions.create({ ...asked, ...more });
    try {
      for await (const chunk of stream) {
        Object.assign(answer, { id: chunk.id, model: chunk.model }, chunk.usage ? this.cost(chunk.usage) : {});
        for (const { delta, finish_reason } of chunk.choices) {
          answer.text += delta.content ?? '';
          answer.thought += delta.reasoning_content ?? '';
          if (delta.refusal) answer.refusal = (answer.refusal ?? '') + delta.refusal;
          answer.stop = finish_reason ?? answer.stop;
          for (const { index, id, function: piece } of delta.tool_calls ?? []) {
            if (id) [answer.ids[index], names[index], texts[index]] = [id, piece.name, ''];
            texts[index] += piece.arguments ?? '';
          }
        }
      }
    } catch (error) {
      answer.raised = error;
    }
    answer.calls = names.map((name, at) => [name, JSON.parse(texts[at])]);
    return answer;
  }

  async helper(row, asked) {
    const stream = this.completions.stream({ ...asked, stream_options: { include_usage: true } });
    // The helper keeps only the last piece of an unknown field; its events have all pieces.
    let thought = '';
    stream.on('chunk', (chunk) => {
      thought += chunk.choices[0]?.delta.reasoning_content ?? '';
    });
    try {
      return { ...this.read(await stream.finalChatCompletion()), thought };
    } catch (error) {
      const snapshot = stream.currentChatCompletionSnapshot;
      if (!snapshot) throw error;
      const text = snapshot.choices[0].message.content;
      return { ...nothing(), id: snapshot.id, model: snapshot.model, text, raised: error };
    }
  }
}

/** The `@anthropic-ai/sdk` package. */
export class AnthropicAi {
  static error = Anthropic.APIError;
  static refused = Anthropic.InternalServerError;

  constructor(gateway) {
    const options = { apiKey: gateway.key, baseURL: gateway.url, maxRetries: 0, timeout: 60_000 };
    this.messages = new Anthropic(options).messages;
  }

  request(row, model) {
    const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PNG } };
    const [messages, parts] = [[], row.image ? [image] : []];
    if (row.history) {
      const call = (id) => ({ type: 'tool_use', id, name: 'seek', input: { n: 1 } });
      messages.push({ role: 'user', content: 'seek both' }, { role: 'assistant', content: [call('c1'), call('c2')] });
      const content = [{ type: 'text', text: 'seen' }, image];
      parts.push({ type: 'tool_result', tool_use_id: 'c1', content });
      parts.push({ type: 'tool_result', tool_use_id: 'c2', content: 'it broke', is_error: true });
    }
    const content = parts.length > 0 ? [...parts, { type: 'text', text: row.say }] : row.say;
    const asked = { model, max_tokens: row.maxTokens ?? 4000, messages: [...messages, { role: 'user', content }] };
    if (row.system) asked.system = row.system;
    if (row.tools) {
      asked.tools = row.tools.map((name) => ({ name, description: 'a tool', input_schema: PARAMETERS }));
    }
    if (row.think) asked.thinking = { type: 'enabled', budget_tokens: 2048 };
    if (row.schema) asked.output_config = { format: { type: 'json_schema', schema: SCHEMA } };
    if (row.stop) asked.stop_sequences = [row.stop];
    return asked;
  }

  async whole(row, asked) {
    return this.read(await this.messages.create(asked));
  }

  read(answer) {
    const blocks = (kind) => answer.content.filter((block) => block.type === kind);
    const calls = blocks('tool_use');
    return {
      ...nothing(),
      id: answer.id,
      model: answer.model,
      text: blocks('text').map((block) => block.text).join(''),
      thought: blocks('thinking').map((block) => block.thinking).join(''),
      signature: blocks('thinking')[0]?.signature,
      refusal: answer.stop_details?.explanation ?? null,
      calls: calls.map((call) => [call.name, call.input]),
      ids: calls.map((call) => call.id),
      stop: answer.stop_reason,
      sequence: answer.stop_sequence,
      parsed: answer.parsed_output,
      ...this.cost(answer.usage),
    };
  }

  cost(usage) {
    return {
      prompt: usage.input_tokens,
      completion: usage.output_tokens,
      thinkingTokens: usage.output_tokens_details?.thinking_tokens,
    };
  }

  async stream(row, asked) {
    const [answer, blocks] = [nothing(), []];
    const stream = await this.messages.create({ ...asked, stream: true });
    try {
      for await (const event of stream) this.note(event, answer, blocks);
    } catch (error) {
      answer.raised = error;
    }
    const tools = blocks.filter((block) => block.type === 'tool_use');
    answer.calls = tools.map((block) => [block.name, JSON.parse(block.json || '{}')]);
    answer.ids = tools.map((block) => block.id);
    return answer;
  }

  note(event, answer, blocks) {
    const inOrder = (index, expected) => {
      if (index !== expected) throw new Error(`block ${index} where ${expected} was due`);
    };
    if (event.type === 'message_start') {
      const { id, model, usage } = event.message;
      Object.assign(answer, { id, model, startTokens: usage.input_tokens });
    } else if (event.type === 'content_block_start') {
      inOrder(event.index, blocks.length);
      blocks.push({ ...event.content_block, json: '' });
    } else if (event.type === 'content_block_delta') {
      inOrder(event.index, blocks.length - 1);
      const { text, thinking, signature, partial_json } = event.delta;
      answer.text += text ?? '';
      answer.thought += thinking ?? '';
      answer.signature = signature ?? answer.signature;
      blocks.at(-1).json += partial_json ?? '';
    } else if (event.type === 'message_delta') {
      const { stop_reason, stop_sequence, stop_details } = event.delta;
      const refusal = stop_details?.explanation ?? null;
      Object.assign(answer, { stop: stop_reason, sequence: stop_sequence, refusal }, this.cost(event.usage));
    }
  }

  async helper(row, asked) {
    const formatted = row.schema ? { ...asked, output_config: { format: jsonSchemaOutputFormat(SCHEMA) } } : asked;
    const stream = this.messages.stream(formatted);
    try {
      return this.read(await stream.finalMessage());
    } catch (error) {
      const snapshot = stream.currentMessage;
      if (!snapshot) throw error;
      const text = snapshot.content.map((block) => block.text ?? '').join('');
      return { ...nothing(), id: snapshot.id, model: snapshot.model, text, raised: error };
    }
  }
}
