"""LangChain, LlamaIndex and instructor with rwkv-gpu's server.

Start `rwkv-gpu serve`, then run `python docs/examples/clients.py`. Each library needs only its OpenAI class and the
server's address. To install them: pip install langchain-openai llama-index-llms-openai-like instructor
"""

import sys

import openai
import pydantic

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080/v1"
KEY = "none"  # any text, unless the server has --api-key


class Sea(pydantic.BaseModel):
    """What we want to know."""

    blue: bool
    name: str = pydantic.Field(max_length=20)


def with_langchain(model: str) -> None:
    """An answer and a stream."""
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=URL, api_key=KEY, model=model, max_tokens=24)
    print("LangChain:", chat.invoke("What is the sea?").content)
    print("streamed:", "".join(str(chunk.content) for chunk in chat.stream("What is a hill?")))


def with_llama_index(model: str) -> None:
    """A chat."""
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=model, api_base=URL, api_key=KEY, is_chat_model=True, max_tokens=24)
    print("LlamaIndex:", llm.chat([ChatMessage(role="user", content="What is the sea?")]).message.content)


def with_instructor(model: str) -> None:
    """An answer as an instance of a class; a grammar on the server makes it valid."""
    import instructor

    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY), mode=instructor.Mode.JSON_SCHEMA)
    question = [{"role": "user", "content": "Describe the sea."}]
    sea = client.chat.completions.create(model=model, messages=question, response_model=Sea, max_tokens=80)
    print("instructor:", repr(sea))


if __name__ == "__main__":
    name = openai.OpenAI(base_url=URL, api_key=KEY).models.list().data[0].id
    for use in (with_langchain, with_llama_index, with_instructor):
        use(name)
