"""Words around a value that say what it is for: another answer, or an explanation of the one that was announced."""


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


JOINING = _words("and or , &")
# These propose what follows them, whatever that is.
PROPOSING = _words(
    "or maybe perhaps possibly probably alternatively otherwise else instead actually rather wait hmm sorry vs "
    "versus correction respectively \\lor \\vee"
)
CONNECTING = PROPOSING | _words(
    "no and but also so then therefore thus hence though although while whereas however yes still likely about it's "
    "that's equivalently approximately approx roughly nearly aka plus case"
)
VERBS = _words(
    "is are be was were becomes become became equals equal get gets got gives give gave obtain obtains yields yield "
    "say says said meant mean means make makes have has prefer find finds"
)
MODALS = _words("could might may would should can")
ADVERBS = _words(
    "also just really actually now exactly simply probably likely maybe perhaps possibly instead only indeed rather "
    "truly"
)
# What may stand for the answer in "it is", "the total becomes".
SUBJECTS = MODALS | _words(
    "it that this these they there we i you one some others many answer answers result count total value number sum "
    "guess alternative candidate possibility option choice solution other correct books sources reading "
    "interpretation convention and or if then"
)
OTHERS = _words("other another second alternative alternate")
CANDIDATES = _words("candidates options possibilities alternatives answers values")
# After a value, these set a condition and so leave it an answer.
CONDITIONS = _words(
    "if when where for by otherwise else unless with without as counting including excluding depending assuming "
    "under instead too also perhaps maybe possibly or and but works once after since because though although while"
)
CASES = _words("if when unless assuming otherwise in")
CONDITIONAL = CASES - _words("when in")
BRANCHES = _words("if when where for otherwise else unless")
# These say that a value is right as well.
APPROVED = _words(
    "possible acceptable accepted valid correct right plausible reasonable candidate answer option alternative "
    "choice possibility solution"
)
ADMITTING = _words("consider accept allow take choose")
ADMITTED_BY = _words("works is holds as being remains")
FITTING = APPROVED | _words("work works fit fits satisfy satisfies qualify qualifies")
FITTING_BY = MODALS | _words("also works fits is")
TOO = _words("too also possible valid")
# What these introduce explains the answer.
EXPLAINING = _words("where here with for since because as from using at by via given namely recall let")
INSTANCE = _words("for at when")
REASONS = _words("since because")
# At the start of a sentence, these hold up to the comma.
LEADING = _words("since because as for with from using given taking setting at")
CONCLUDING = _words("no but yes so then thus hence therefore")
APPROXIMATE = _words("about approximately approx roughly nearly")
# A sentence of these alone has no other point than its equation.
FUNCTION_WORDS = CONNECTING | VERBS | SUBJECTS | ADVERBS | LEADING | _words("finally again note notice indeed overall")
