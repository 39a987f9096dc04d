"""Runs one task with a framework, configured by a block of the guide: library.py NAME SHAPE BLOCK PROMPT, in the
working folder. Prints the model's last message."""

import asyncio
import pathlib
import subprocess
import sys

TURNS = 12


def write_file(path: str, content: str) -> str:
    """Write a file."""
    pathlib.Path(path).write_text(content)
    return "written"


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text that occurs exactly once in a file."""
    text = pathlib.Path(path).read_text()
    if text.count(old) != 1:
        return "the text does not occur exactly once"
    pathlib.Path(path).write_text(text.replace(old, new))
    return "replaced"


def run_command(command: str) -> str:
    """Run a command in a shell and return what it prints."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


TOOLS = [write_file, edit_file, run_command]


async def agents(model, prompt):
    from agents import Agent, Runner, function_tool

    agent = Agent(name="worker", model=model, tools=[function_tool(tool) for tool in TOOLS])
    run = Runner.run_streamed(agent, prompt, max_turns=TURNS)
    async for _ in run.stream_events():
        pass
    return run.final_output


async def pydantic_ai(model, prompt):
    from pydantic_ai import Agent

    agent = Agent(model, tools=TOOLS)
    async with agent.run_stream(prompt) as run:
        return await run.get_output()


async def langchain(model, prompt):
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(model, TOOLS)
    last = None
    async for state in agent.astream({"messages": [("user", prompt)]}, {"recursion_limit": 2 * TURNS}, stream_mode="values"):
        last = state["messages"][-1]
    return last.text if isinstance(last.text, str) else last.text()


async def llama_index(model, prompt):
    from llama_index.core.agent.workflow import FunctionAgent

    agent = FunctionAgent(tools=TOOLS, llm=model)
    return str(await agent.run(prompt, max_iterations=TURNS))


def main(name, shape, block, prompt):
    names = {}
    exec(compile(block, "the guide", "exec"), names)
    print(asyncio.run(globals()[name](names[shape], prompt)))


if __name__ == "__main__":
    main(*sys.argv[1:])
