// Runs one task with Vercel's AI SDK, in the working folder. Arguments: SHAPE PROMPT. `run.py` prepends the block of
// the guide to this file.
import { execSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { jsonSchema, stepCountIs, streamText, tool } from "ai";

const texts = (...names) =>
  jsonSchema({
    type: "object",
    properties: Object.fromEntries(names.map((name) => [name, { type: "string" }])),
    required: names,
    additionalProperties: false,
  });

const tools = {
  write_file: tool({
    description: "Write a file.",
    inputSchema: texts("path", "content"),
    execute: async ({ path, content }) => (writeFileSync(path, content), "written"),
  }),
  edit_file: tool({
    description: "Replace a text that occurs exactly once in a file.",
    inputSchema: texts("path", "old", "new"),
    execute: async ({ path, old, new: text }) => {
      const parts = readFileSync(path, "utf8").split(old);
      if (parts.length !== 2) return "the text does not occur exactly once";
      writeFileSync(path, parts.join(text));
      return "replaced";
    },
  }),
  run_command: tool({
    description: "Run a command in a shell and return what it prints.",
    inputSchema: texts("command"),
    execute: async ({ command }) => execSync(command, { encoding: "utf8", timeout: 60_000 }),
  }),
};

const [shape, prompt] = process.argv.slice(2);
const model = { chat, responses, messages }[shape];
const asked = streamText({ model, tools, prompt, providerOptions, stopWhen: stepCountIs(12), maxRetries: 0 });
let said = "";
for await (const part of asked.fullStream) {
  if (part.type === "error") throw part.error;
  if (part.type === "text-delta") said += part.text;
}
console.log(said);
