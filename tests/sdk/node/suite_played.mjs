// Replays every recorded response of an upstream through the real gateway to both families of official SDK. A client of
// the other format must get the same result as from the recorded translation directly. A client of the same format must
// get the same result as from the upstream. A failing upstream must raise an error of the SDK. Streams are read raw and
// with the accumulating helper.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Gateway, load } from './gateway.mjs';
import { Player, recordings } from './played.mjs';

const { OpenAI } = load('openai');
const { Anthropic } = load('@anthropic-ai/sdk');
const MADE_ID = /^call_[0-9a-f]{24}$/;
const messages = [{ role: 'user', content: 'go' }];

let player;
let gateway;
before(async () => {
  player = await Player.start();
  gateway = await Gateway.start('played.toml', player.address);
});
after(async () => {
  player.stop();
  assert.deepEqual(await gateway.stop(), [0], 'the gateway ends with code 0');
});

/** Replaces ids that the gateway generates, which differ each time. */
const known = (id) => (MADE_ID.test(id) ? 'made' : id);

/** The `openai` package: complete, streamed raw, and with its helper. */
const chat = {
  error: OpenAI.OpenAIError,
  least: { messages },
  client: (place, apiKey) => new OpenAI({ apiKey, baseURL: `http://${place}/v1`, maxRetries: 0, timeout: 60_000 }),
  async reply(client, asked) {
    return this.told(await client.chat.completions.create(asked));
  },
  async raw(client, asked) {
    let text = '';
    for await (const { choices } of await client.chat.completions.create({ ...asked, stream: true })) {
      for (const { delta } of choices) text += delta.content ?? '';
    }
    return text;
  },
  async helper(client, asked) {
    return this.told(await client.chat.completions.stream(asked).finalChatCompletion());
  },
  told({ choices: [{ message, finish_reason }] }) {
    const calls = (message.tool_calls ?? []).map((call) => [known(call.id), call.function.name, call.function.arguments]);
    return [message.content ?? '', message.refusal ?? null, message.reasoning_content ?? null, calls, finish_reason];
  },
};

/** The `@anthropic-ai/sdk` package. */
const anthropic = {
  error: Anthropic.AnthropicError,
  least: { messages, max_tokens: 100 },
  client: (place, apiKey) => new Anthropic({ apiKey, baseURL: `http://${place}`, maxRetries: 0, timeout: 60_000 }),
  async reply(client, asked) {
    return this.told(await client.messages.create(asked));
  },
  async raw(client, asked) {
    let text = '';
    for await (const event of await client.messages.create({ ...asked, stream: true })) text += event.delta?.text ?? '';
    return text;
  },
  async helper(client, asked) {
    return this.told(await client.messages.stream(asked).finalMessage());
  },
  told({ content, stop_reason, stop_sequence, usage }) {
    assert.ok(usage.input_tokens >= 0 && usage.output_tokens >= 0);
    // The text of a call that the helper stores internally is not part of the answer.
    const plain = content.map((block) => JSON.parse(JSON.stringify(block)));
    return [plain.map((block) => (block.id ? { ...block, id: known(block.id) } : block)), stop_reason, stop_sequence];
  },
};

const FAMILIES = { chat, messages: anthropic };

const outcome = (promise) => promise.then((answer) => ({ answer }), (error) => ({ error }));

async function play(recording, family) {
  const kind = FAMILIES[family];
  const crossed = family !== recording.shape;
  const own = crossed ? recording.request : null;
  const { stream: _, ...asked } = { ...(own ?? kind.least), model: recording.shape + (own && recording.tool ? '-tool' : '') };
  const text = crossed ? recording.heard : recording.said;
  for (const mode of recording.kind === 'stream' ? ['raw', 'helper'] : ['reply']) {
    let direct = null;
    if (text !== null && !recording.fault) {
      player.play(recording.kind, text);
      direct = await outcome(kind[mode](kind.client(player.address, 'none'), asked));
      if (crossed) assert.equal(direct.error, undefined, 'the recording itself is not read');
    }
    player.play(recording.kind, recording.said);
    const { answer, error } = await outcome(kind[mode](kind.client(gateway.places.gateway, gateway.key), asked));
    if (recording.fault) assert.ok(error instanceof kind.error, `${mode}: ${error ?? JSON.stringify(answer)}`);
    else if (!direct?.error) {
      assert.equal(error, undefined, mode);
      if (direct) assert.deepEqual(answer, direct.answer, mode);
    }
  }
}

for (const recording of recordings()) {
  for (const family of Object.keys(FAMILIES)) {
    test(`${recording.name}, ${recording.kind}: ${recording.shape} to ${family}`, () => play(recording, family));
  }
}
