"""What other graders' tests say of two answers: those of math-verify, MATH's `is_equiv`, and ToRA's `math_equal`."""

MATRIX = r"\begin{pmatrix}-\frac{7}{4}&-2\\4&\frac{1}{4}\end{pmatrix}"
# (gold, answer, equal)
MATH_VERIFY = [
    ("7425000", "7,425,000", True), ("1000", "1 000", True), ("1000.0", "1,000.0", True), ("0.4", ".4", True),
    ("1000.99", "\\$1,000.99", True), ("10/9", "\\frac{10}{9}", True), ("-10/9", "-\\frac{10}{9}", True),
    ("[0,1)", "[0,1)", True), ("[0,9)", "[0,1)", False), ("(0,9)", "[0,9)", False), ("1/3", "\\frac13 ", True),
    ("10", "(9+1)", True), ("\\sqrt{3}", "\\sqrt3", True), ("1/3", "\\cfrac{1}{3}", True),
    ("1/3", "\\left( \\frac{1}{3} \\right)", True), ("1/3", "\\frac{1}{3} \\text{meters}", True),
    ("1/3", "k = \\frac{1}{3}", True), ("28\\%", "28 percent", True), ("28\\%", "28 \\%", True),
    ("(2,12) \\cup (12,102)", "x \\in (2, 12) \\cup (12, 102)", True), ("\\text{E}", "E", True),
    ("-2 \\le x \\le 7", "x \\in [-2,7]", True), ("4", "4\\sqrt{2}", False), ("12\\text{ and }13", "12$ and $13", True),
    ("n=2, 3, 4", "n=1, 2, 3", False), ("D = (0, 1)", "D = (0, 1)", True), ("D = (0, 1)", "D = (0, 1.5)", False),
    ("19, 46, and 82", "19, 46, \\text{ and } 82", True), ("19, 46, and 82", "21, 36, and 82", False),
    ("1 - \\frac{1}{\\mathrm{e}}", "1 - \\frac{1}{e}", True), ("\\pm 2021", "2021", False), ("12:00", "1:00", False),
    ("\\pm 2021", "-2021, 2021", True), ("a +3z = 0", "0", False), ("2x + z = 1", "1", False),
    ("x \\neq 5", "x != 5", True),
]  # fmt: skip
# MATH's own compares as strings: lists in another order are unequal there, and left out here.
MATH = [
    ("\\tfrac{1}{2} + \\frac1{72}", "\\frac{1}{2} + 2/3", False), ("10, 4, 2", "4, 12, 2", False),
    ("\\tfrac{1}{2} +\\! \\frac1{72}", "\\dfrac{1}{2} +\\frac{1}{72}", True), ("10\\text{ units}", "10 ", True),
    ("10\\text{ units}", "100 ", False), ("10", "\\$10", True), ("0.1", ".1", True), ("10\\%", "10", True),
    ("\\left(x-2\\right)\\left(x+2\\right)", "(x-2)(x+2)", True), ("\\frac34i", "\\frac{3}{4}i", True),
    ("10\\sqrt{3} + \\sqrt4", "10\\sqrt3 + \\sqrt{4}", True), ("\\tfrac83", "\\frac{8}{3}", True),
    ("5x - 7y + 11z + 4 = 0", "x + y - z + 2 = 0", False), ("1/2", "\\frac{1}{2}", True),
]  # fmt: skip
# ToRA's accepts rounded decimals, which are left out here.
TORA = [
    ("(1,4.5)", "(1,\\frac{9}{2})", True), ("\\frac{x}{7}+\\frac{2}{7}", "\\frac{x+2}{7}", True), ("16.0", "16", True),
    ("\\sec^2(y)", "\\tan^2(y)+1", True), (MATRIX, MATRIX.replace("\\frac{1}{4}", "0.25"), True),
    ("x+2n+1", "x+1", False),
    ("-34x-45y+20z-100=0", "34x+45y-20z+100=0", True), ("(+5)(b+2)", "(a+5)(b+2)", False),
    ("5.51", "\\frac{11}{2}", False),
    ("\\frac{\\sqrt{\\sqrt{11}+\\sqrt{194}}}{2\\sqrt{33}+15}",
    "\\frac{\\sqrt{\\sqrt{11}+\\sqrt{194}}}{15+2\\sqrt{33}}", True),
    ("\\frac{1+\\sqrt{5}}{2}", "2", False), ("\\frac{34}{16}+\\frac{\\sqrt{1358}}{16}", "4", False),
    ("a = b", "b = a", True),
    ("3s^2", "3*s**2", True), ("7*(x - 3)*(x + 3)", "7(x+3)(x-3)", True),
    ("2x(15x^2-4x+10)", "2*x*(15*x^2-4*x+10)", True),
]  # fmt: skip
PAIRS = MATH_VERIFY + MATH + TORA
