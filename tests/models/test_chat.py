"""Chat templates: what they are given, what they may not do, and how they say no."""

import pytest

from octavo.errors import ModelError, RequestError
from octavo.models.chat import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def render(source, messages=HI, tokens=None, **extra):
    return ChatTemplate(source, tokens or {}).render(messages, **extra)


def test_messages_special_tokens_and_the_generation_prompt():
    source = """{{ bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
[{{ m.role }}]{{ m.content }}
{% endfor %}
{% if add_generation_prompt %}[assistant]{% endif %}"""
    messages = [{"role": "system", "content": "no"}, *HI]
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(messages) == "<s>[user]hi\n[assistant]"
    assert template.render(messages, add_generation_prompt=False) == "<s>[user]hi\n"


def test_as_transformers_renders(tmp_path):
    """The same template through transformers: block trimming, JSON that keeps what HTML would escape, variables of the caller."""
    from transformers import AutoTokenizer

    from tests.checkpoints import write_tokenizer

    source = """{{- bos_token }}
    {% if tools is not none %}
        {{ tools | tojson(indent=2) }}
    {% endif %}
{% for message in messages %}
    {% generation %}{{ message['role'] + ': ' + message['content'] | trim }}{% endgeneration %}
    {{ eos_token }}
{%- endfor %}
{{ strftime_now('%Y') | length }}{% if thinking is defined %}{{ thinking }}{% endif %}"""
    messages = [{"role": "user", "content": " a <b> & 'ü' "}, {"role": "assistant", "content": "c"}]
    tools = [{"type": "function", "function": {"name": "f<", "description": "é", "parameters": {}}}]
    write_tokenizer(tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    for extra in ({}, {"tools": tools, "thinking": "yes"}):
        expected = reference.apply_chat_template(messages, chat_template=source, tokenize=False, **extra)
        tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
        assert render(source, messages, tokens, add_generation_prompt=False, **extra) == expected


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {}}], r'messages\[0\].content\[0\] is of type "image_url": only text'),
        ([{"type": "text"}], "not a text part"),
        (["hi"], "not a text part"),
        (7, "neither a string nor a list"),
    ],
)
def test_other_content_is_refused(content, message):
    with pytest.raises(RequestError, match=message) as error:
        render("{{ messages[0].content }}", [{"role": "user", "content": content}])
    assert error.value.param == "messages"


@pytest.mark.parametrize("message", [{"content": "hi"}, {"role": 1, "content": "hi"}, "hi", None])
def test_a_message_without_a_role_is_refused(message):
    with pytest.raises(RequestError, match=r"messages\[0\] is not an object with a role"):
        render("x", [message])


def test_the_templates_own_words_reach_the_caller():
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('Start with a system message!') }}{% endif %}"
    with pytest.raises(RequestError, match="Start with a system message!") as error:
        render(source)
    assert error.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.items() }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(RequestError):
        render(source)


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content + 1 }}", "{{ messages[9].content.x }}", "{{ 1 // 0 }}", "{{ nothing() }}"]
)
def test_a_failing_template_is_the_requests_error(source):
    with pytest.raises(RequestError, match="chat template"):
        render(source)


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% endfor %}", "{% include 'x' %}{% nothing %}"])
def test_a_template_that_is_not_valid_is_the_models_error(source):
    with pytest.raises(ModelError, match=r"model\.gguf: the chat template is not valid"):
        ChatTemplate(source, {}, "model.gguf")
