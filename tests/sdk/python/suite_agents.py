"""Agents' loops: five turns of three parallel tools each, from every format against every kind of upstream, with the
same final text.

The simulated provider calls tools for five turns and then repeats every result that it received, in order, so that a
lost, duplicated or misplaced result shows in the final text.
"""

import json
import unittest

import anthropic
import openai

GATEWAY = None
TURNS, CALLS = 5, 3
ASKED = f"Work it out.\n#sim turns={TURNS} calls={CALLS} tokens=2 think=2 report"
MODELS = ["small", "large", "newer"]
TOOLS = ["measure", "fetch", "weigh"]
FINAL = " ".join(f"{TOOLS[n % CALLS]} gave {n + 1}" for n in range(TURNS * CALLS))


class Agents(unittest.TestCase):
    def check(self, loop):
        """`loop(model, ran)` runs an agent to its end, records each call in `ran` and returns the final text."""
        seen = {}
        for model in MODELS:
            before, ran = GATEWAY.stats()["requests"], []
            text = loop(model, ran)
            seen[model] = (text, ran, GATEWAY.stats()["requests"] - before)
        wanted = (FINAL, [(TOOLS[n % CALLS], n + 1) for n in range(TURNS * CALLS)], TURNS + 1)
        self.assertEqual(seen, {model: wanted for model in MODELS})

    def anthropic_loop(self, stream):
        def loop(model, ran):
            def tool(name):
                schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

                @anthropic.beta_tool(name=name, description="one of three", input_schema=schema)
                def run(n):
                    ran.append((name, n))
                    return f"{name} gave {n}"

                return run

            client = anthropic.Anthropic(api_key=GATEWAY.key, base_url=f"http://{GATEWAY.gateway}", max_retries=0)
            messages = [{"role": "user", "content": ASKED}]
            tools = [tool(name) for name in TOOLS]
            runner = client.beta.messages.tool_runner(
                model=model, max_tokens=1000, messages=messages, tools=tools, stream=stream
            )
            answer = runner.until_done()
            return "".join(block.text for block in answer.content if block.type == "text")

        return loop

    def test_tool_runner_of_anthropic(self):
        self.check(self.anthropic_loop(stream=False))

    def test_tool_runner_of_anthropic_streamed(self):
        self.check(self.anthropic_loop(stream=True))

    def openai_loop(self, ask):
        def loop(model, ran):
            client = openai.OpenAI(api_key=GATEWAY.key, base_url=f"http://{GATEWAY.gateway}/v1", max_retries=0)
            parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in TOOLS]
            messages = [{"role": "user", "content": ASKED}]
            while True:
                self.assertLess(len(messages), 1 + 2 * TURNS * CALLS, "the loop does not end")
                message = ask(client, {"model": model, "messages": messages, "tools": tools})
                messages.append(message.to_dict())
                if not message.tool_calls:
                    return message.content
                for call in message.tool_calls:
                    n = json.loads(call.function.arguments)["n"]
                    ran.append((call.function.name, n))
                    said = f"{call.function.name} gave {n}"
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": said})

        return loop

    def test_tools_with_openai(self):
        self.check(self.openai_loop(lambda client, asked: client.chat.completions.create(**asked).choices[0].message))

    def test_tools_with_openai_streamed(self):
        def ask(client, asked):
            with client.chat.completions.stream(**asked) as stream:
                return stream.get_final_completion().choices[0].message

        self.check(self.openai_loop(ask))

    def responses_loop(self, ask):
        def loop(model, ran):
            client = openai.OpenAI(api_key=GATEWAY.key, base_url=f"http://{GATEWAY.gateway}/v1", max_retries=0)
            parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            tools = [{"type": "function", "name": name, "parameters": parameters, "strict": False} for name in TOOLS]
            items = [{"role": "user", "content": ASKED}]
            while True:
                self.assertLess(len(items), 1 + 4 * TURNS * CALLS, "the loop does not end")
                answer = ask(client, {"model": model, "input": items, "tools": tools, "store": False})
                # Reasoning is sent back, too.
                items += [item.model_dump(exclude_none=True) for item in answer.output]
                calls = [item for item in answer.output if item.type == "function_call"]
                if not calls:
                    return answer.output_text
                for call in calls:
                    n = json.loads(call.arguments)["n"]
                    ran.append((call.name, n))
                    output = f"{call.name} gave {n}"
                    items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})

        return loop

    def test_tools_with_responses(self):
        self.check(self.responses_loop(lambda client, asked: client.responses.create(**asked)))

    def test_tools_with_responses_streamed(self):
        def ask(client, asked):
            with client.responses.stream(**asked) as stream:
                return stream.get_final_response()

        self.check(self.responses_loop(ask))
