"""How byte-level BPE vocabularies split text into words before merging: one row per name of `tokenizer.ggml.pre`.

The patterns are those of the models' training, or llama.cpp's equivalent form. They must run in linear time. If the
original does not, it is rewritten to try each run only once.
"""

from dataclasses import dataclass, replace

# fmt: off
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
           rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}")
_SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
# Words by letter case: optional capitals followed by small letters; or capitals only.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O = (rf"{_CASED[0]}{_CONTRACTION}?|{_CASED[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}"
          rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}")
# Kimi-K2: as GPT-4o, but runs of Han characters are separate words.
_UPPER_KIMI, _LOWER_KIMI = (rf"[{letters[1:-1]}&&[^\p{{Han}}]]" for letters in (_UPPER, _LOWER))
_KIMI = (rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_KIMI}*{_LOWER_KIMI}+{_CONTRACTION}?"
         rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_KIMI}+{_LOWER_KIMI}*{_CONTRACTION}?|\p{{N}}{{1,3}}"
         rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}")
_UFAKZEKA = _QWEN2.removeprefix(_CONTRACTION + "|")
_MINICPM5 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")
_JAIS2 = _LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + "|".join(
    [*(rf"\s{{{1 << bit}}}(?!\S)" for bit in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s"])
_EXAONE_MOE = (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")
_YOUTU = (r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
          _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}"))
# Image tokens, white space of code, single digits, single marks; then GPT-2's words.
_CHAMELEON = (r"<sentinel:[0-9]+>", r"IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# The escaped letters are those that Unicode normalisation would change.
_DEEPSEEK_LETTERS = (
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ"
    "ῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
_DEEPSEEK_CJK = r"[一-龥ࠀ-一가-퟿]+"
# Groups of three digits from the right. A lookahead counts digits only at their start.
_THREES = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))|\p{N}{3}|\p{N}+"
_DEEPSEEK_V3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES)
_SPARK = _DEEPSEEK_V3.replace(r"[\p{P}\p{S}]+[\r\n]*", r"[\p{P}\p{S}]+").replace(_SPACES, r"[\r\n]|\s+(?!\S)|\s+")
# fmt: on


@dataclass(frozen=True)
class PreTokenizer:
    """Patterns applied in sequence, each splitting off its matches, and related options."""

    patterns: tuple[str, ...]
    clean_spaces: bool = True  # decoding removes the space before punctuation
    ignore_merges: bool = False  # a word that is a token becomes that token, regardless of merges
    add_bos: bool = False  # unless the file specifies otherwise


_GPT2_ROW = PreTokenizer((_GPT2,))
_DIGITS_ROW = PreTokenizer((r"\p{N}", _GPT2))
_QWEN2_ROW = PreTokenizer((_QWEN2,), clean_spaces=False)
_LLAMA3_ROW = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_GPT4O_ROW = PreTokenizer((_GPT4O,), clean_spaces=False)
_BAILING_ROW = PreTokenizer((_BAILING,), clean_spaces=False)
_CHATGLM_ROW = PreTokenizer((_LLAMA3,))
# Chinese, Japanese, Thai, Lao, Khmer, Burmese and Korean
_ASIAN = r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_V3_ROW = PreTokenizer((r"\p{N}{1,3}", _KANA, _DEEPSEEK_V3), clean_spaces=False)
_AYA_ROW = PreTokenizer((_THREES, _GPT4O), clean_spaces=False)

DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE: dict[str, PreTokenizer] = {
    "default": DEFAULT,
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _LLAMA3_ROW,
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2"), _QWEN2_ROW),
    **dict.fromkeys(("hunyuan", "solar-open", "grok-2"), _QWEN2_ROW),
    **dict.fromkeys(("stablelm2", "megrez"), replace(_QWEN2_ROW, clean_spaces=True)),
    "qwen35": PreTokenizer((_QWEN35,), clean_spaces=False),
    "seed-coder": PreTokenizer((_SEED_CODER,), clean_spaces=False),
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "exaone4"), _GPT2_ROW),
    **dict.fromkeys(("modern-bert", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"), _GPT2_ROW),
    **dict.fromkeys(("jina-v1-en", "jina-v2-code", "roberta-bpe"), _GPT2_ROW),
    **dict.fromkeys(("trillion", "granite-docling"), replace(_GPT2_ROW, clean_spaces=False)),
    **dict.fromkeys(("starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_ROW),
    **dict.fromkeys(("command-r", "smollm"), replace(_DIGITS_ROW, clean_spaces=False)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _CHATGLM_ROW),
    **dict.fromkeys(("glm4", "glm5"), replace(_CHATGLM_ROW, ignore_merges=True)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_ROW),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie"), _GPT4O_ROW),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _AYA_ROW),
    "afmoe": PreTokenizer((_THREES, _ASIAN, _DEEPSEEK_V3), clean_spaces=False),
    "superbpe": PreTokenizer((_THREES,), clean_spaces=False),
    "spark2_5": PreTokenizer((r"\p{N}", _KANA, _SPARK), clean_spaces=False),
    "youtu": PreTokenizer(_YOUTU, clean_spaces=False, ignore_merges=True),
    "jais-2": PreTokenizer((_JAIS2,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "ufakzeka": PreTokenizer((_UFAKZEKA,), clean_spaces=False),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2), clean_spaces=False),
    "poro-chat": PreTokenizer((_BLOOM,), clean_spaces=False),
    **dict.fromkeys(("bloom", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}"), clean_spaces=False),
    "minimax-m2": _GPT4O_ROW,
    "granite-embed-multi-97m": replace(_GPT4O_ROW, ignore_merges=True),
    "chameleon": PreTokenizer(_CHAMELEON, clean_spaces=False, add_bos=True),
    "kimi-k2": PreTokenizer((_KIMI,), clean_spaces=False),
    "tekken": PreTokenizer((_TEKKEN,), clean_spaces=False, ignore_merges=True, add_bos=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            r"\s?" + _DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"(?<!\s)\s++$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        ),
        clean_spaces=False,
    ),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"), clean_spaces=False
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK_V3_ROW),
}
