"""Chat templates in the style of published ones, and small ones that use one feature of Jinja each."""

CHATML = """{% for message in messages %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if strftime_today is defined %}{%- set date = strftime_today %}{%- else %}{%- set date = "01 Jan 2025" %}{%- endif %}
{#- The system turn comes first, if there is one. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{%- if system_message != "" %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}{{- "Date: " + date + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning %}
            {%- set content = '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: ' ~ loop.index ~ ' is ' ~ message.role) }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
{{- '' if user_messages | length < 100 else 'long' }}
"""

NEMOTRON = """{%- macro render_extra_keys(json_dict, handled_keys) -%}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {%- if json_dict[json_key] is mapping or (json_dict[json_key] is sequence and json_dict[json_key] is not string) %}
                {{- '\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson) ~ '</' ~ json_key ~ '>' }}
            {%- else %}
                {{- '\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | string) ~ '</' ~ json_key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro -%}
{%- set enable_thinking = enable_thinking if enable_thinking is defined else True %}
{%- set ns = namespace(last_user_idx = -1) -%}
{%- for m in messages -%}
    {%- if m.role == "user" -%}{%- set ns.last_user_idx = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if messages[0].role == "system" %}
    {%- set system_message = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}{%- set loop_messages = messages %}
{%- endif %}
{{- "<|im_start|>system\\n" }}{{- system_message }}
{%- for tool in tools or [] %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- '\\n<function>\\n<name>' ~ tool.name ~ '</name>' }}
    {%- for name, fields in tool.parameters.properties|items %}
        {{- '\\n<parameter>' ~ name ~ ': ' ~ (fields.type | default('any')) }}{{- render_extra_keys(fields, ['type']) }}{{- '</parameter>' }}
    {%- endfor %}
    {{- '\\n</function>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content | default('', true) %}
        {%- if '<think>' not in content and '</think>' not in content %}
            {%- set content = "<think></think>" ~ content %}
        {%- elif loop.index0 < ns.last_user_idx %}
            {%- set c = content.split('</think>')[-1] | trim %}
            {%- set content = "<think></think>" ~ c %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' ~ (content | trim) ~ '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' }}{{- message.content }}{{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' ~ ('<think>\\n' if enable_thinking else '<think></think>') }}
{%- endif %}
"""

# As Qwen3's: only the last answer has its thoughts, and it always has a place for them. Hugging Face's generation tags
# say which text is the assistant's.
QWEN3 = """{%- set ns = namespace(last_query=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == "user" %}
        {%- set ns.searching = false %}{%- set ns.last_query = (messages|length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}{%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}{%- generation %}
        {%- if loop.index0 > ns.last_query and (loop.last or thoughts) %}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}{%- endgeneration %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Tools before the system text, thoughts of answers after the last question, calls with arguments as text or as an object.
AGENT = """{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{- '\\n' ~ (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n' }}
        {%- endif %}
        {%- if message.content is string %}{{- message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<call>' ~ call.name ~ ' ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- else %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.name is defined %}{{- ' ' + message.name }}{%- endif %}
        {{- '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

PUBLISHED = {"chatml": CHATML, "llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "nemotron": NEMOTRON, "qwen3": QWEN3}

# Each is rendered with VALUES.
SNIPPETS = r"""
{{ 1 + 2 * 3 ** 2 - 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2.5 * 2 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }} {{ [1, 'b', none, {'k': "it's"}] }} {{ (1, 2)[0] }}
{{ words[0] }}{{ words[-1] }}{{ words[1:] }}{{ words[:-1] }}{{ words[::-1] }}{{ words[::2] }}{{ words[5:1:-2] }}
{{ text[0] }}{{ text[1:4] }}{{ text[::-1] }}{{ text | length }}{{ text[100:] }}{{ text[-2] }}
{{ 'x' if false }}|{{ 'x' if missing else 'y' }}|{{ missing }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}
{% for x in words %}{{ loop.index }}/{{ loop.length }}{{ x }}{{ ',' if not loop.last }}{% endfor %}
{% for x in [] %}a{% else %}empty{% endfor %}{% for x in missing %}a{% else %}none{% endfor %}
{% for k, v in table.items() %}{{ k }}={{ v }};{% endfor %}{% for k in table %}{{ k }}{% endfor %}
{% for x in range(10) if x is odd %}{{ x }}{% if x > 4 %}{% break %}{% endif %}{% endfor %}
{% for x in range(6) %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{{ loop.revindex }}{% endfor %}
{% for x in words %}{{ loop.previtem | default('-') }}<{{ x }}>{{ loop.nextitem | default('-') }}{% endfor %}
{% set a = 1 %}{% for x in words %}{% set a = a + 1 %}{% endfor %}{{ a }}
{% set ns = namespace(n=0, s='') %}{% for x in words %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ x %}{% endfor %}{{ ns.n }}{{ ns.s }}
{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set block %}in {{ a }} block{% endset %}[{{ block }}]
{% macro f(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(1, c=3) }}{{ f('x') | trim | upper }}
{{ words | join(', ') }} {{ words | first }} {{ words | last }} {{ words | length }} {{ words | reverse | list }}
{{ '  a b  ' | trim }}|{{ '  a '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxa'.lstrip('x') }}|{{ 'axx'.rstrip('x') }}|{{ ' a\n'.rstrip() }}
{{ 'Hello'.upper() }}{{ 'Hello' | lower }}{{ 'hello world' | title }}{{ 'hELLO' | capitalize }}{{ 'hello'.capitalize() }}
{{ 'a,b,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a\nb\n'.splitlines() }}
{{ 'aXbX'.replace('X', '--') }}{{ 'aXbX' | replace('X', '-') }}{{ 'aXbX'.replace('X', '-', 1) }}{{ 'abc'.find('c') }}{{ 'aXbX'.count('X') }}
{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'b' in 'abc' }}{{ 'b' not in words }}{{ 'k' in table }}{{ 1 in [1, 2] }}
{{ 1 is defined }}{{ missing is defined }}{{ missing is undefined }}{{ none is none }}{{ 'a' is string }}{{ table is mapping }}{{ words is iterable }}
{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 1 is number }}{{ true is boolean }}{{ 1.5 is float }}{{ 1 is integer }}{{ words is sequence }}{{ 2 is not odd }}
{{ 1 < 2 }}{{ 'a' < 'b' }}{{ 1 == 1.0 }}{{ 'a' != 'b' }}{{ [1] == [1] }}{{ 2 >= 2 }}{{ true and 'x' }}{{ '' or 'y' }}{{ not '' }}{{ 1 if 1 > 2 else 3 }}
{{ table | tojson }}{{ nested | tojson }}{{ nested | tojson(indent=2) }}{{ 'é"\n\u0001' | tojson }}{{ [] | tojson(indent=4) }}
{{ table.get('k') }}{{ table.get('none', 5) }}{{ table.get('none') }}{{ table.keys() | list }}{{ table.values() | list }}{% for pair in table | items %}{{ pair[1] }}{% endfor %}
{{ table.k }}{{ table['k'] }}{{ table.missing }}{{ nested.list[1].deep }}{{ nested['list'][0] }}
{{ rows | map(attribute='name') | join('+') }}{{ rows | selectattr('ok') | map(attribute='name') | list }}{{ rows | rejectattr('name', 'equalto', 'a') | list | length }}
{{ words | map('upper') | list }}{{ [1, 2, 3, 4] | select('even') | list }}{{ [1, 1, 2] | unique | list }}{{ ['', 'a'] | select | list }}
{{ '5' | int + 1 }}{{ 'x' | int }}{{ '2.5' | float }}{{ -3 | abs }}{{ 12 | string | length }}{{ 'a' * 3 }}{{ [1] + [2] }}
{{ 'one\ntwo\n\nthree' | indent }}|{{ 'one\ntwo' | indent(2, true) }}|{{ 'a' 'b' }}|{{ "tab\t\x41\u00e9" }}
{# a comment #}  {#- stripped -#}   x
   {% if true %}  indented {% endif %}  rest
a {%- if true -%}   b   {%- endif +%}
c {{- ' d ' -}} e
{% generation %}said{% endgeneration %}{% if 0 %}a{% elif '' %}b{% elif 1 %}c{% else %}d{% endif %}
{{ {'a': {'b': 1}}.a.b }}{{ [[1, 2], [3]][0][1] }}{{ ('a', 'b') | join }}{{ {} | length }}{{ not true or true and false }}
{{ '%' ~ 1 }}{{ loop is defined }}{{ '{{' }}{{ "%}" }}{{ 'a\\b' }}{{ 10 // 3 * 3 + 10 % 3 }}{{ 2 ** 3 ** 1 }}{{ 1 - 1 - 1 }}
""".strip("\n").split("\n")

VALUES = {
    "words": ["one", "two", "three"], "text": "naïve 😀 text", "table": {"k": "v", "n": 2, "b": True},
    "nested": {"list": [1, {"deep": "x"}], "empty": {}, "none": None, "float": 0.5, "text": "ü\"\\/"},
    "rows": [{"name": "a", "ok": True}, {"name": "b", "ok": False}, {"name": "c", "ok": True}],
}

SNIPPETS += [
    "{% for k, v in {'b': 1, 'A': 2, 'c': 0} | dictsort %}{{ k }}{{ v }}{% endfor %}", "{{ {'b': 1, 'A': 2} | dictsort(true) | map('first') | join }}",
    "{{ {'b': 1, 'A': 2, 'c': 0} | dictsort(by='value', reverse=true) | map('last') | join }}", "{% for k, v in {512: 1, 0: 2} | dictsort %}{{ k + 1 }}-{{ v }} {% endfor %}",
    "{{ {1: 'a', 'x': 'b'}[1] }}{{ {1: 'a'} }}{{ 1 in {1: 2} }}{% for k in {2: 'a'} %}{{ k * 2 }}{% endfor %}",
    "{{ '{} and {}'.format('a', 2) }}", "{{ '{1}{0}{x}'.format('a', 'b', x=text) }}", "{{ '{:>5}|{:05.1f}|{{}}|{!r}'.format('a', 2.25, 'q') }}",
    "{{ '%s has %d (%.2f%%)' % ('a', 3, 2) }}", "{{ '%s' % text }}", "{{ '%5s|%-5d|%-5s|%5d|%05d|%+d|%6.1f|%-8r|%s|%4s' % ('a', 3, 'b', 4, 5, 6, 2.25, 'q', 2.0, 2.0) }}", "{{ '%s-%s' | format('a', 1) }}",
    "{{ words | sort }}{{ words | sort(reverse=true) }}{{ rows | sort(attribute='name', reverse=true) | map(attribute='name') | join }}",
    "{{ 'a</t>b'.partition('</t>') | join('|') }}{{ 'a-b-c'.rpartition('-')[0] }}{{ 'abc'.partition('x') | join('|') }}",
    "{{ 'abc'.removeprefix('ab') }}{{ 'abc'.removesuffix('c') }}{{ 'abc'.removeprefix('x') }}{{ '12'.isdigit() }}{{ '1a'.isdigit() }}",
    "{{ nested | tojson(separators=(',', ':')) }}", "{{ table | tojson(sort_keys=true, indent=2) }}", "{{ text | tojson(ensure_ascii=true) }}",
    "{{ rows | selectattr('name', 'gt', 'a') | list | length }}{{ 2 is lt 3 }}{{ 2 is ge 3 }}{{ 3 is le 3 }}",
    "{% macro m(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ m(*['p', 'q']) }}{{ m(*words[:1]) }}", "{{ '{}{}{}'.format('0', *words[1:]) }}",
    "{% macro m(a) %}<{{ caller() }}{{ a }}>{% endmacro %}{% call m('x') %}[{{ text }}]{% endcall %}",
    "{% macro m() %}{{ caller('y', b='z') }}{% endmacro %}{% call(a, b='c') m() %}{{ a }}{{ b }}{% endcall %}",
    "{{ [3, 1.5, 2] | min }}{{ ['b', 'A', 'c'] | max }}{{ words | min }}{{ ['b', 'A'] | min(true) }}{{ ['b', 'B'] | max }}{{ [] | min is defined }}",
    "{{ none | selectattr('a') | list }}{{ 0 | map('trim') | list }}{{ none | reject('string') | list }}", "{{ 'GRÜßE Ñ ЖΩ'.lower() }}{{ 'ÀÉ' | lower }}",
    "{{ strftime_now('%Y-%m-%d') }}{{ strftime_now('%d %b %Y') }}{{ strftime_now is defined }}",
]

# What both refuse.
REFUSED = ["{{ missing.attribute }}", "{{ 1 + 'a' }}", "{{ missing + 'a' }}", "{% if %}{% endif %}", "{{ 'a", "{% for x in 5 %}{% endfor %}",
           "{{ raise_exception('no') }}", "{{ 1 // 0 }}", "{% endif %}", "{{ 'a' | nofilter }}", "{% if true %}", "{{ 'a'.nomethod() }}",
           "{{ missing() }}", "{% set words.x = 1 %}", "{{ }}"]


# Shapes of published templates that end turns, or take content, in their own way. Generation tags mark what is learned,
# for the oracle; TAGS removes them.
def _loop(turn, end=""):
    return "{% for m in messages %}" + turn + "{% endfor %}" + end


TAGS = ("{% generation %}", "{% endgeneration %}")
_USER = "{% if m.role == 'user' %}"
_ANSWER = "{% elif m.role == 'assistant' %}"
_SAID = TAGS[0] + "{{ m.content }}"
SHAPES = {  # template, what is added to the end of the conversation
    # The end of an answer is written when a question follows.
    "end_between": (_loop("{% if not loop.first and m.role == 'user' %}" + TAGS[0] + "<|eot_id|>" + TAGS[1] + "{% endif %}" + _USER +
                          "<|user|>{{ m.content }}" + _ANSWER + "<|assistant|>" + _SAID + TAGS[1] + "{% endif %}",
                          "{% if add_generation_prompt %}<|assistant|>{% endif %}"), "<|eot_id|>"),
    # The next turn's beginning ends an answer.
    "next_turn_ends": (_loop(_USER + "{% if loop.first %}<|user|>{% else %}" + TAGS[0] + "<|user|>" + TAGS[1] + "{% endif %}\n{{ m.content }}" +
                             _ANSWER + "<|assistant|>\n" + TAGS[0] + "{{ m.content.strip() }}" + TAGS[1] + "{% endif %}",
                             "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"), "<|user|>"),
    # The prompt is not indented as the header is.
    "indented_header": (_loop(_USER + "User: {{ m.content }}" + _ANSWER + "\n    Assistant: " + _SAID + "<|end|>" + TAGS[1] + "{% endif %}",
                              "{% if add_generation_prompt %}\nAssistant: <think>\n</think>{% endif %}"), ""),
    # The system's header begins otherwise, and there is no prompt.
    "other_system_header": (_loop("{{ '<|start|>' if m.role == 'system' else '<|message|>' }}{{ m.role }}\n{% if m.role == 'assistant' %}" + _SAID +
                                  "<|end|>" + TAGS[1] + "{% else %}{{ m.content }}{% endif %}\n"), ""),
    "prompt_of_another_case": (_loop("### {{ m.role }}: {% if m.role == 'assistant' %}" + _SAID + "<|end|>" + TAGS[1] + "{% else %}{{ m.content }}"
                                     "{% endif %}\n", "{% if add_generation_prompt %}### Assistant: {% endif %}"), ""),
    # One token stands between turns, also before a prompt that nobody asked for.
    "separator": (_loop(_USER + "{% if loop.first %}<|start|>{% else %}" + TAGS[0] + "<|start|>" + TAGS[1] + "{% endif %}User: {{ m.content }}" +
                        _ANSWER + "<|start|>Bot:" + _SAID + TAGS[1] + "{% endif %}", TAGS[0] + "<|start|>" + TAGS[1] + "Bot:"), ""),
    # A prompt that nobody asked for follows an answer without an end.
    "prompt_ends": (_loop(_USER + "{% if loop.first %}<|user|>{% else %}" + TAGS[0] + "<|user|>" + TAGS[1] + "{% endif %}{{ m.content }}" + _ANSWER +
                          "<|assistant|>" + TAGS[0] + "{{ '\\n' + m.content }}" + TAGS[1] + "{% endif %}",
                          "<|assistant|>"), ""),
    # The end of the text is written at the end only.
    "end_of_text": (_loop(_USER + "<|user|>\n{{ m.content }}<|end|>\n" + _ANSWER + "<|assistant|>\n" + _SAID + "<|end|>\n" + TAGS[1] +
                          "{% endif %}", "{% if add_generation_prompt %}<|assistant|>\n{% else %}" + TAGS[0] + "{{ eos_token }}" + TAGS[1] + "{% endif %}"), ""),
    # The last answer ends differently, and has a header that the prompt does not give.
    "other_last_end": (_loop(_USER + "<|start|>user<|message|>{{ m.content }}<|end|>" + _ANSWER + "<|start|>assistant" + TAGS[0] +
                             "<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}" + TAGS[1] + "{% endif %}",
                             "{% if add_generation_prompt %}<|start|>assistant{% endif %}"), ""),
    # A generation prompt that nobody asked for.
    "always_prompts": (_loop(_USER + "<|start|><|user|>{{ m.content }}<|stop|>" + _ANSWER + "<|start|><|assistant|>" + TAGS[0] +
                             "<|channel|>{{ m.content }}<|end|><|stop|>" + TAGS[1] + "{% endif %}", "<|start|><|assistant|><|eot_id|>"), ""),
    "no_prompt": (_loop("<|start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + _SAID + "<|end|>" + TAGS[1] + "{% else %}{{ m.content }}<|end|>"
                        "{% endif %}"), ""),
    # The header is a special token that begins no other turn, and there is no prompt.
    "no_prompt_after_a_token": (_loop(_USER + "<|user|>\n{{ m.content }}\n" + _ANSWER + "<|assistant|>\n" + _SAID + "<|end|>" + TAGS[1] +
                                      "{{ '' if loop.last else '\n' }}{% endif %}"), ""),
    "trims": (_loop("<|start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + TAGS[0] + "{{ m.content | trim }}<|end|>\n" + TAGS[1] +
                    "{% else %}{{ m.content }}<|end|>\n{% endif %}", "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"), ""),
    # The prompt goes on with a thought, which may begin as an answer does.
    "thinks_in_the_prompt": (_loop(_USER + "<|user|>{{ m.content }}" + _ANSWER + "<|assistant|>\n" + _SAID + "<|end|>" + TAGS[1] + "{% endif %}",
                                   "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"), ""),
    # The template puts a tag before an answer that begins as the prompt's does.
    "tags_answers": (_loop(_USER + "<|user|>{{ m.content }}" + _ANSWER + "<|assistant|>\n" + TAGS[0] + "<tell>{{ m.content }}</tell><|end|>" + TAGS[1] +
                           "{% endif %}", "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"), ""),
    # Nothing is ever written after an answer: there is nothing to learn.
    "never_ends": (_loop("{{ m.role | upper }}: {% if m.role == 'assistant' %}" + _SAID + TAGS[1] + "{% else %}{{ m.content }}{% endif %}\n",
                         "{% if add_generation_prompt %}ASSISTANT: {% endif %}"), ""),
    "announced": (_loop(_USER + "[INST] {{ m.content }} [/INST]" + _ANSWER + " " + _SAID + "</s>" + TAGS[1] + "{% endif %}"), ""),
}
_PARTS = "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}"
_ONLY_TEXT = "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}"
LISTS = {  # templates that read content as a list, or both ways; whether the images of a string are written by the list branch
    "only_lists": _loop("{{ m.role | capitalize }}{{ ':' if m.content[0].type == 'image' else ': ' }}{% if m.role == 'assistant' %}" + TAGS[0] +
                        _PARTS + "<|end|>\n" + TAGS[1] + "{% else %}" + _PARTS + "<|end|>\n{% endif %}",
                        "{% if add_generation_prompt %}Assistant: {% endif %}"),
    "images_first": _loop("{{ m.role | upper }}: {% for p in m.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
                          "{% if m.role == 'assistant' %}" + TAGS[0] + _ONLY_TEXT + "</s>" + TAGS[1] + "{% else %}" + _ONLY_TEXT + " {% endif %}",
                          "{% if add_generation_prompt %}ASSISTANT: {% endif %}"),
    "both": _loop("<|start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + TAGS[0] + "{% endif %}{% if m.content is string %}{{ m.content }}"
                  "{% else %}{% for p in m.content %}{% if p.type == 'image' or 'image' in p %}<|vision|><image><|vision_end|>{% elif 'text' in p %}"
                  "{{ p.text }}{% endif %}{% endfor %}{% endif %}<|end|>\n", "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"),
    "lists_but_of_system": _loop("{% if m.role == 'system' %}<|start|>{{ m.content }}<|end|>{% elif m.role == 'user' %}<|user|>" + _PARTS +
                                 _ANSWER + "<|assistant|>" + TAGS[0] + _PARTS + "<|end|>" + TAGS[1] + "{% endif %}",
                                 "{% if add_generation_prompt %}<|assistant|>{% endif %}"),
    "lists_of_users": _loop(_USER + "[INST]" + _PARTS + "[/INST]" + _ANSWER + TAGS[0] + "{{ m.content + '</s>' }}" + TAGS[1] + "{% endif %}"),
}
# A tag inside a condition cannot be closed in another one.
LISTS["both"] = LISTS["both"].replace("{% if m.role == 'assistant' %}" + TAGS[0] + "{% endif %}", "")
