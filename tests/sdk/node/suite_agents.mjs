// Agents' loops: five turns of three parallel tools each, from every format against every kind of upstream, with the
// same final text. The simulated provider calls tools for five turns and then repeats every result that it received, in
// order, so that a lost, duplicated or misplaced result shows in the final text.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Gateway, load } from './gateway.mjs';

const { OpenAI } = load('openai');
const { Anthropic } = load('@anthropic-ai/sdk');
const { betaTool } = load('@anthropic-ai/sdk/helpers/beta/json-schema');

const [TURNS, CALLS] = [5, 3];
const ASKED = `Work it out.\n#sim turns=${TURNS} calls=${CALLS} tokens=2 think=2 report`;
const messages = [{ role: 'user', content: ASKED }];
const TOOLS = ['measure', 'fetch', 'weigh'];
const SCHEMA = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] };
const RAN = Array.from({ length: TURNS * CALLS }, (_, at) => [TOOLS[at % CALLS], at + 1]);
const FINAL = RAN.map(([name, n]) => `${name} gave ${n}`).join(' ');

let gateway;
before(async () => {
  gateway = await Gateway.start();
});
after(async () => {
  assert.deepEqual(await gateway.stop(), [0, 0], 'gateway and provider end with code 0');
});

/** `loop(model, run)` runs an agent to its end, calls `run(name, n)` for each tool call, and returns the final text. */
async function check(loop) {
  for (const model of ['small', 'large', 'newer']) {
    const before = (await gateway.stats()).requests;
    const ran = [];
    const run = (name, n) => {
      ran.push([name, n]);
      return `${name} gave ${n}`;
    };
    assert.equal(await loop(model, run), FINAL, model);
    assert.deepEqual(ran, RAN);
    assert.equal((await gateway.stats()).requests - before, TURNS + 1);
  }
}

for (const stream of [false, true]) {
  const how = stream ? 'streamed' : 'whole';

  test(`the tool runner of anthropic, ${how}`, async () => {
    await check(async (model, run) => {
      const client = new Anthropic({ apiKey: gateway.key, baseURL: gateway.url, maxRetries: 0 });
      const tool = (name) =>
        betaTool({ name, description: 'one of three', inputSchema: SCHEMA, run: ({ n }) => run(name, n) });
      const tools = TOOLS.map(tool);
      const runner = client.beta.messages.toolRunner({ model, max_tokens: 1000, messages: [...messages], tools, stream });
      const answer = await runner.runUntilDone();
      return answer.content.filter((block) => block.type === 'text').map((block) => block.text).join('');
    });
  });

  test(`the tools of openai, ${how}`, async () => {
    await check(async (model, run) => {
      const client = new OpenAI({ apiKey: gateway.key, baseURL: `${gateway.url}/v1`, maxRetries: 0 });
      const tool = (name) => ({
        type: 'function',
        function: { name, parse: JSON.parse, parameters: SCHEMA, function: ({ n }) => run(name, n) },
      });
      const tools = TOOLS.map(tool);
      const runner = client.chat.completions.runTools({ model, messages: [...messages], tools, stream });
      return runner.finalContent();
    });
  });

  test(`the responses of openai, ${how}`, async () => {
    await check(async (model, run) => {
      const { responses } = new OpenAI({ apiKey: gateway.key, baseURL: `${gateway.url}/v1`, maxRetries: 0 });
      const tools = TOOLS.map((name) => ({ type: 'function', name, parameters: SCHEMA, strict: false }));
      const input = [...messages];
      for (let turn = 0; turn <= TURNS; turn += 1) {
        const asked = { model, input, tools, store: false };
        const answer = stream ? await responses.stream(asked).finalResponse() : await responses.create(asked);
        const calls = answer.output.filter(({ type }) => type === 'function_call');
        if (calls.length === 0) return answer.output_text;
        // Reasoning is sent back, too.
        input.push(...answer.output);
        for (const { call_id, name, arguments: text } of calls) {
          input.push({ type: 'function_call_output', call_id, output: run(name, JSON.parse(text).n) });
        }
      }
      return 'the loop does not end';
    });
  });
}
