"""A forked process has no threads of its parent: its LLM refuses, never hangs."""

import os
import subprocess
import sys

import pytest

import starter

PROGRAM = """
import asyncio, os, sys
from threading import Event, Thread
from foreword import LLM, AsyncLLM, SamplingParams

held, go = Event(), Event()

def holds(tokens, scores):
    held.set()
    go.wait()
    return scores

llm = LLM({folder!r}, method="ngram", nodes=3)
many = AsyncLLM(llm)
short = SamplingParams(temperature=0, max_tokens=8)
asyncio.run(many.generate("one two", short))
begun = llm.stream("one two one two", short)
next(begun)
said = []
slow = SamplingParams(temperature=0, max_tokens=8, processors=(holds,))
thread = Thread(target=lambda: said.extend(llm.generate("one two three one two three", slow)))
thread.start()
held.wait()  # a round runs, and its thread has the lock

def ask(do):
    try:
        do()
    except BaseException as error:
        print(type(error).__name__, error, flush=True)

child = os.fork()
if not child:
    ask(lambda: llm.generate("one two", short))
    ask(lambda: next(llm.stream("one two", short)))
    ask(lambda: next(begun))
    ask(lambda: llm.render([dict(role="user", content="Hi")]))
    ask(lambda: asyncio.run(many.generate("one two", short)))
    asyncio.run(many.close())
    llm.close()
    os._exit(7)
print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go.set()
thread.join()
print("text", said[0].text == llm.generate("one two three one two three", short)[0].text, said[0].stats.drafted > 0)
asyncio.run(many.close())
"""
REFUSED = (
    "InvalidRequest cannot use this LLM in a forked process: its threads stayed in the "
    "parent. "
    "Start the process with multiprocessing's 'spawn'"
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_an_llm_refuses_to_work_in_a_forked_process():
    program = PROGRAM.format(folder=str(starter.target()))
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, 9)  # the child too
            said = "it hangs"
    assert said.splitlines() == [*[REFUSED] * 5, "exit 7", "text True True"]
