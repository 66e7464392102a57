r"""Units after a value: a name, a percent or degree sign, a currency sign, and a modulus.

A unit of the table may follow any value, with or without `\text`. Other words may follow a number only. These are up to
three words, the last of them a plural ("ordered pairs", "such triangles"). Words that change the number ("hundredths")
or limit it ("or more") are not units. "Million" is a part of the number.
"""

import re

from reward.literals import rational
from reward.notation import squeeze

# In the singular; the value is the name to compare.
_UNITS = {
    "mm": "mm", "cm": "cm", "km": "km", "nm": "nm", "meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm",
    "kilometer": "km", "kilometre": "km", "millimeter": "mm", "millimetre": "mm", "in": "inch", "inche": "inch",
    "inch": "inch", "ft": "foot", "foot": "foot", "feet": "foot", "mi": "mile", "mile": "mile", "yd": "yard",
    "yard": "yard", "sec": "s", "second": "s", "min": "minute", "minute": "minute", "hr": "h", "hour": "h",
    "day": "day", "week": "week", "month": "month", "year": "year", "gram": "g", "kilogram": "kg", "kg": "kg",
    "mg": "mg", "lb": "pound", "pound": "pound", "oz": "ounce", "ounce": "ounce", "ton": "ton", "ml": "ml",
    "milliliter": "ml", "liter": "l", "litre": "l", "quart": "quart", "gallon": "gallon", "acre": "acre",
    "mph": "mile/h", "deg": "°", "degree": "°", "percent": "%", "pct": "%", "percentage": "%", "dollar": "$",
    "cent": "cent", "rad": "radian",
    "radian": "radian", "unit": "", "point": "point", "way": "way", "people": "people", "person": "people",
    "children": "child", "men": "man", "women": "woman", "vertices": "vertex", "matrices": "matrix",
    "radii": "radius", "digit": "digit", "solution": "solution", "pair": "pair",
}  # fmt: skip
_LETTERS = ("m", "s", "g", "h", "l")  # units in \text only: "3m" is a product
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_CURRENCIES = {"\\$": "$", "€": "€", "£": "£"}
# No unit is longer, so the search is bounded.
_TAIL_CHARS = 80
_UNIT = re.compile(
    r"(?:(?P<sign>°(?: ?[CF](?![A-Za-z])| ?\\text ?\{ ?[CF] ?\})?|%|\\\$|[€£])|\\text ?\{(?P<text>[^{}]*)\}"
    r"|(?P<modulus>\\pmod ?(?:\{[^{}]*\}|[0-9A-Za-z]))"
    r"|(?<=[0-9}] )(?P<letters>[msghl]/[a-z]+)|(?<![A-Za-z\\])(?P<bare>[A-Za-z]{2,}(?:(?:\.? |/)[A-Za-z]+){0,4})\.?)"
    r"(?: ?\^\{(?P<power>[23])\})?\Z"
)
_CURRENCY = re.compile(r"(-?) ?(\\\$|[€£]) ?")
_UNIT_WORDS = re.compile(r"(?:(square|sq|cubic|cu)\.? ?)?([A-Za-z][A-Za-z .-]*)\Z")
_PER = re.compile(r" ?/ ?| per ")
_PLURAL = re.compile(r"(?:[a-z]+ ){0,2}([a-z]{3,}(?<![sui])s)\Z")
_CARDINAL = (
    r"zero(?:e?s)?|ones?|twos?|threes?|fours?|fives?|six(?:es)?|sevens?|eights?|nines?|tens?|elevens?|twel(?:ve|f)s?|"
    r"[a-z]*teens?|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ies)|hundreds?|thousands?|"
    r"(?:[mbz]|tr|quadr|quint|sext|sept|oct|non|dec)illions?"
)
_ORDINAL = (
    r"(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]*teen|[a-z]*tie|hundred|thousand|[a-z]*illion)ths?|"
    r"hal(?:f|ves?)|thirds?|quarters?"
)
_NO_UNIT = re.compile(
    rf"\b(?:{_CARDINAL}|{_ORDINAL}|dozens?|gross|scores?|doubles?|twice|factorials?|squared|cubed|inverses?|"
    r"reciprocals?|negatives?|minus|plus|times|or|and|not|no|more|less|fewer|than|over|under|least|most|about|if|mod|"
    r"base|choose|pi|sqrt|to|for|where|when|unless|except|is|are|was|has|does|this|its|as|only|of)\b"
)
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED = re.compile(
    rf"(?P<sign>-? ?(?:\\\$ ?)?)(?P<number>[0-9][0-9.,]*) ?(?:\\text ?\{{ ?)?(?P<scale>{'|'.join(_SCALES)})"
    r"(?P<unit>(?: [^{}]*)?)\}?\Z"
)


def scale_number(text: str) -> str:
    """A spelled text with a number such as "2.5 million" in digits."""
    match = _SCALED.match(text)
    number = rational(match["number"]) if match else None
    if match is None or number is None:
        return text
    value = number * 10 ** _SCALES[match["scale"]]
    unit = f"\\text{{{match['unit']}}}" if match["unit"].strip() else ""
    return f"{match['sign']}{value}{unit}"


def split_unit(text: str) -> tuple[str, str]:
    r"""(value, unit) of a spelled text; the unit is "" if it is missing, and for `\text{ units}`."""
    if currency := _CURRENCY.match(text):
        return currency[1] + text[currency.end() :], _CURRENCIES[currency[2]]
    match = _UNIT.search(text, max(0, len(text) - _TAIL_CHARS))
    if not match or not match.start():
        return text, ""
    if sign := match["sign"]:
        value = text[: match.start()].rstrip()
        is_angle = sign == "°" and _ANGLE_FUNCTION.search(value)
        return (text, "") if is_angle else (value, _CURRENCIES.get(sign) or re.sub(r"[^°%€£CF]", "", sign))
    if match["modulus"]:
        return text[: match.start()].rstrip(), re.sub("[ {}]", "", match["modulus"])
    power = f"^{match['power']}" if match["power"] else ""
    for start, phrase in _phrases(match):
        value = text[:start].rstrip()
        name = _name(phrase.strip().lower(), match["bare"] is None, value)
        if name is not None:
            return value, name + power if name else ""
    return text, ""


def _phrases(match: re.Match[str]) -> list[tuple[int, str]]:
    """Where a unit may start, and its words: a value may end in letters itself, as in "ab cm"."""
    if match["bare"] is None:
        return [(match.start(), match["text"] or match["letters"] or "")]
    start, bare = match.span("bare")[0], match["bare"]
    return [(start + word.start(), bare[word.start() :]) for word in re.finditer(r"(?<![A-Za-z/])[A-Za-z]{2,}", bare)]


def _name(phrase: str, is_text: bool, value: str) -> str | None:
    """The name of a unit, None if the words are not a unit; "m/s" for "meters per second"."""
    first, *others = _PER.split(phrase)
    names = [_find_known(first, is_text), *(_find_known(other, True) for other in others)]
    if None not in names:
        return "/".join(map(str, names))
    plural = _PLURAL.match(phrase)
    # Letters without a space before them may be a product.
    if not plural or not (is_text or len(plural[1]) > 3) or _NO_UNIT.search(phrase):
        return None
    return phrase if rational(squeeze(value)) is not None else None


def _find_known(phrase: str, is_text: bool) -> str | None:
    words = _UNIT_WORDS.match(phrase)
    if not words:
        return None
    name = words[2].strip(" .")
    if is_text and name in _LETTERS:
        known: str | None = name
    else:
        known = _UNITS.get(name, _UNITS.get(name.removesuffix("s")))
    return known + _POWERS.get(words[1], "") if known else known
