"""Variables of a judge that could start, and a key that opens nothing."""

KEY = "AIza-not-a-real-key-0123456789"
VARIABLES = {
    "JUDGE": "1",
    "JUDGE_MODELS": "first second",
    "CORRECTNESS_WEIGHT": "0.6",
    "QUALITY_WEIGHT": "0.4",
    "JUDGE_FALLBACK": "correctness",
    "JUDGE_UNFINISHED": "1",
    "JUDGE_TRIES": "3",
    "JUDGE_DEADLINE": "240",
    "JUDGE_CALL_TIMEOUT": "90",
    "JUDGE_RPM": "120",
    "JUDGE_CONCURRENCY": "32",
}
