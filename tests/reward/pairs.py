"""Pairs of answers that are equal, and pairs that are not."""

MATRIX = "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"
VECTOR = "\\begin{pmatrix}x\\\\y\\end{pmatrix}"
SHEAR = r"\begin{pmatrix}1&1\\0&1\end{pmatrix}"
ABSOLUTE = r"\begin{cases} x & \text{if } x \ge 0 \\ -x & \text{if } x < 0 \end{cases}"
PARITY = r"\begin{cases}1&\text{if } n \text{ is even}\\0&\text{otherwise}\end{cases}"
EQUAL = [
    # numbers
    ("\\frac{1}{2}", "0.5"), ("\\frac12", "1/2"), ("\\dfrac{1}{2}", "\\tfrac12"), ("1\\frac{1}{2}", "\\frac{3}{2}"),
    ("1 1/2", "1.5"), ("-\\frac{1}{3}", "\\frac{-1}{3}"), ("\\frac{2}{4}", ".5"), ("0.\\overline{3}", "\\frac13"),
    ("0.1\\overline{6}", "\\frac{1}{6}"), ("1,234.5", "1234.50"), ("3\\cdot10^5", "300{,}000"), ("7 \\times 8", "56"),
    ("2(3)", "6"), ("5^{12}", "244140625"), ("5!", "120"), ("\\binom{5}{2}", "10"), ("2^{-1}", "\\frac12"),
    ("\\left\\lfloor\\frac72\\right\\rfloor", "3"), ("-0.0", "0"), ("2^{2^3}", "256"),
    # surds, trigonometry, complex numbers
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt2}"), ("\\sqrt{8}", "2\\sqrt2"), ("sqrt(3)/2", "\\frac{\\sqrt{3}}{2}"),
    ("\\sqrt{2}+\\sqrt{3}", "\\sqrt{5+2\\sqrt6}"), ("\\sqrt[3]{8}", "2"), ("2π", "2\\pi"), ("√3", "\\sqrt{3}"),
    ("\\sin 30^\\circ", "\\frac12"), ("\\cos\\frac{\\pi}{3}", "0.5"), ("e^{i\\pi}", "-1"), ("2^{0.5}", "\\sqrt2"),
    ("0.5x", "x/2"), ("(1+2i)(1-2i)", "5"),
    ("-\\frac{1}{5} - \\frac{2}{5}i", "\\frac{-1-2i}{5}"), ("\\log_2 8", "3"), ("\\ln e^2", "2"),
    # expressions with variables
    ("x(x+1)", "x^2 + x"), ("(a+b)^2", "a^2+2ab+b^2"), ("\\frac{18+3c}{7}", "\\frac{3(c+6)}{7}"), ("xy", "yx"),
    ("42x\\sqrt{5x}", "42\\sqrt5 x^{3/2}"), ("\\sin^2 t", "1-\\cos^2 t"), ("x_1+x_2", "x_2+x_1"), ("n!", "n(n-1)!"),
    # units, percent, money, degrees
    ("50\\%", "50"), ("50\\%", "50%"), ("50 percent", "50\\%"), ("35^\\circ", "35"),
    ("35^{\\circ}", "35\\text{ degrees}"),
    ("\\$1012.50", "1012.5"), ("\\$5", "5\\text{ dollars}"), ("164 \\pi \\mbox{ square feet}", "164\\pi"),
    ("3\\text{ cm}^2", "3\\text{ square centimeters}"), ("\\frac12\\text{ inches}", "0.5 in"),
    # tuples, intervals, sets, lists
    ("(1,2)", "(1, \\frac{4}{2})"), ("\\left( 4, \\frac{\\pi}{12} \\right)", "(4,\\pi/12)"), ("[12,28]", "[12, 28.0]"),
    ("(-\\infty, -\\frac15)", "(-∞,-0.2)"), ("\\{1,2\\}", "\\{2, 1\\}"), ("\\{1,2\\}", "1 \\text{ and } 2"),
    ("6, 8\\text{, and }10", "10, 8, 6"), ("\\{5\\}", "5"), ("(100,101)", "(100, 101)"), ("\\emptyset", "\\{\\}"),
    ("(-\\infty,-20) \\cup (-20,\\infty)", "(-20,\\infty)\\cup(-\\infty,-20)"), ("\\pm 3", "3, -3"),
    ("1\\pm\\sqrt2", "1-\\sqrt{2},1+\\sqrt2"),
    ("\\frac{-1\\pm\\sqrt5}{2}", "\\{\\frac{\\sqrt5-1}{2},-\\frac{1+\\sqrt5}{2}\\}"),
    # relations
    ("x=5", "5"), ("(x,y)=(1,2)", "(1,2)"), ("y=2x+1", "2x+1"), ("y=2x+1", "2x-y+1=0"),
    ("x^2+y^2=4", "y^2=4-x^2"), ("x=\\pm 3", "x=3 or x=-3"),
    ("1\\le x<2", "[1,2)"), ("x>3", "(3,\\infty)"), ("3<x", "x>3"), ("x\\in[1,2]", "[1,2]"),
    ("s^2\\le 8r^2", "8r^2\\ge s^2"),
    ("x<1\\text{ or }x>2", "(-\\infty,1)\\cup(2,\\infty)"), ("-80\\leq g(x)\\leq 82", "82 \\ge g(x) \\ge -80"),
    ("2x<4", "x-2<0"), ("f(x)=x^2", "f(x)=x\\cdot x"),
    # bases, words, matrices
    ("101_2", "101_{2}"), ("101_2", "101_{\\text{two}}"), ("0101_2", "101_2"), ("2a_{16}", "2A_{16}"),
    ("\\text{even}", "even"), ("\\text{Even}", "\\mathrm{even}"), ("\\text{(C)}", "C"), ("\\text{C}", "(C)"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&\\frac82\\end{bmatrix}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"),
    ("((x+1))", "x+1"), ("+\\infty", "\\infty"),
    ("1011_{(2)}", "1011_2"), ("1011_{\\text{base }2}", "1011_2"), ("\\text{1011}_2", "1011_{2}"), ("1011₂", "1011_2"),
    ("\\text{1A}_{16}", "1A_{16}"), ("1011_{\\text{base two}}", "1011_2"), ("204_{10}", "204"),
    ("\\text{A, B, D}", "A,B,D"), ("\\text{I and III}", "\\text{I, III}"), ("\\text{I and III}", "I, III"),
    ("\\textbf{(B) }\\frac12", "\\frac12"), ("\\text{(A) }\\text{even}", "\\text{even}"),
    # notation
    ("\\{x|x>2\\}", "(2,\\infty)"), ("\\{x \\mid 1\\le x<2\\}", "[1,2)"), ("\\{y : y>2\\}", "x>2"),
    ("\\{x\\in\\mathbb{R} : x\\ge2\\}", "[2,\\infty)"), ("\\{1,\\ldots,9\\}", "\\{1,\\dots,9\\}"),
    ("{1,2}", "\\{2,1\\}"),
    ("\\mathbb R", "\\mathbb{R}"), ("\u211d", "(-\\infty,\\infty)"), ("{3\\over 4}", "\\frac34"),
    ("{\\sqrt{3}\\over 2}", "\\frac{\\sqrt3}2"),
    ("{10\\choose 3}", "120"), ("\\sin^{-1}(1)", "\\frac{\\pi}{2}"), ("\\tan^{-1} 2", "\\arctan 2"), ("¾", "0.75"),
    ("1¾", "\\frac74"), ("x⁴", "x^4"), ("x⁻¹²", "x^{-12}"), ("2\\mathbf{i}+3", "3+2i"), ("\\mathbf{\\frac12}", "0.5"),
    ("\\frac{1}{2}\\underline{x}", "\\frac x2"), ("\uff11/\uff12", "0.5"), ("\\sin\\boldsymbol{x}", "\\sin x"),
    ("{x}{y}", "xy"),
    ("MN", "\\text{MN}"), ("E(I+1)", "E+EI"), ("I_1+E_2", "E_2+I_1"),
    ("\\{\\{1\\},\\{2\\}\\}", "\\{\\{2\\},\\{1\\}\\}"), ("\\{1,2\\},\\{3\\}", "\\{3\\},\\{2,1\\}"),
    ("5\\text{ m}/\\text{s}", "5\\text{ meters per second}"), ("5\\text{ m}/\\text{s}", "5"), ("\\$5", "5\\$"),
    # functions with an index or a power before a bracket
    ("\\log_2(3)+1", "1+\\log_2(3)"), ("\\log_2 3+1", "1+\\log_{2}(3)"), ("\\sin^2(x)\\cos(x)", "\\cos(x)\\sin^2(x)"),
    ("\\cos^2(x)", "1-\\sin^2(x)"), ("\\sin^2 10^\\circ", "1-\\cos^2(10^\\circ)"), ("\\sec^2(y)", "\\tan^2(y)+1"),
    ("\\log_{2}\\frac18", "-3"), ("\\sin^{-2}(x)", "\\frac1{\\sin^2 x}"), ("3\\ln^2(x)", "\\ln^2(x)\\cdot 3"),
    ("\\log_{\\frac12}(8)", "-3"), ("\\cos^{2}(x)(y+1)", "(1+y)\\cos^2 x"),
    # lists, separators and powers of ten
    ("81, 256", "256, 81"), ("81 and 256", "81, 256"), ("81,256", "81256"), ("32\\,349", "32{,}349"),
    ("81 ,256", "81, 256"), ("\\{81, 256\\}", "256, 81"), ("f(100, 101)", "f(100,101)"),
    ("4.5e33", "4.5\\times10^{33}"), ("1e-5", "10^{-5}"),
    ("1.5E+10", "15{,}000{,}000{,}000"), ("28 pct", "28\\%"), ("28\\text{ percentage}", "28\\%"), ("2**10", "1024"),
    # upright constants and numbers
    ("\\mathrm{e}", "e"), ("\\mathrm{e}^{2}+1", "1+e^2"), ("\\operatorname{e}", "e"), ("3+2\\mathrm{i}", "3+2i"),
    ("\\mathrm{e}^{\\mathrm{i}\\mathrm{\\pi}}", "-1"), ("\\mathrm{1,000}", "1000"), ("\\text{3}\\pi", "3\\pi"),
    ("\\mathrm{12}.5", "12.5"), ("\\frac{\\mathrm{e}}{2}", "e/2"), ("2\\text{e}", "2e"),
    # doubled backslashes
    ("\\\\left(\\\\frac{1}{2},\\\\sqrt{2}\\\\right)", "(0.5,\\sqrt2)"), ("2\\\\pi", "2\\pi"),
    ("\\begin{pmatrix}1\\\\\\frac12\\end{pmatrix}", "\\begin{pmatrix}1\\\\ 0.5\\end{pmatrix}"),
    ("\\begin{pmatrix}1\\\\[4pt]2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    # constants
    ("\\sqrt[3]{20+14\\sqrt2}+\\sqrt[3]{20-14\\sqrt2}", "4"), ("\\sqrt[3]{2+\\sqrt5}+\\sqrt[3]{2-\\sqrt5}", "1"),
    ("\\sqrt[3]{-8}", "-2"), ("\\sqrt[3]{20+14\\sqrt2}", "2+\\sqrt2"), ("\\cos 36^\\circ", "\\frac{1+\\sqrt5}{4}"),
    ("\\cos 20^\\circ\\cos 40^\\circ\\cos 80^\\circ", "\\frac18"), ("\\sqrt{17-12\\sqrt2}", "3-2\\sqrt2"),
    ("4\\arctan\\frac15-\\arctan\\frac1{239}", "\\frac\\pi4"), ("\\log_2 3\\cdot\\log_3 8", "3"),
    ("\\ln 2\\cdot\\ln 3", "\\ln(3)\\ln(2)"), ("x\\cdot\\sin y\\cdot\\cos y", "\\frac{x\\sin 2y}2"),
    # matrices
    ("\\left(\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right)", MATRIX),
    (MATRIX, "\\begin{array}{c|c}1&2\\\\3&4\\end{array}"),
    ("\\left[\\begin{array}{rr}1&2\\\\3&4\\end{array}\\right]", "\\begin{Bmatrix}1&2\\\\3&4\\end{Bmatrix}"),
    (f"{MATRIX}+{MATRIX}", f"2{MATRIX}"), (f"{MATRIX}{MATRIX}", "\\begin{pmatrix}7&10\\\\15&22\\end{pmatrix}"),
    (f"{MATRIX}\\cdot {VECTOR}", "\\begin{pmatrix}x+2y\\\\3x+4y\\end{pmatrix}"), (f"-{MATRIX}", f"{MATRIX}-2{MATRIX}"),
    (f"\\frac12{MATRIX}", "\\begin{pmatrix}0.5&1\\\\3/2&2\\end{pmatrix}"),
    (f"t{VECTOR}", "\\begin{pmatrix}xt\\\\ty\\end{pmatrix}"),
    (f"{{{MATRIX}}}", MATRIX), (f"\\mathbf{{{MATRIX}}}", MATRIX),
    # answers in parts
    ("AB=4, CD=5", "CD=5, AB=4"), ("AB=4, CD=5", "AB=4\\text{ and }CD=5"), ("AB=4, CD=5", "4, 5"),
    ("AB=\\sqrt8", "2\\sqrt2"),
    ("AB = 2\\sqrt{2}, CD=\\frac12", "AB=\\sqrt8 \\quad CD=0.5"), ("|AB|=1", "1"),
    ("S_{ABCD}:S=7:32", "7:32"), ("\\frac{AB}{BC}=\\frac{1}{\\sqrt6}", "\\frac{\\sqrt6}6"),
    ("11,\\! 111,\\! 100", "11111100"), ("x=1,y=2", "(x,y)=(1,2)"),
    ("x=1,y=2", "(1,2)"), ("y=2,x=1", "(x,y)=(1,2)"),
    ("\\angle A=30^\\circ,\\angle B=60^\\circ", "30^\\circ, 60^\\circ"),
    ("x=1 \\quad y=2", "y=2, x=1"), ("x=2 \\quad\\text{or}\\quad x=3", "2, 3"), ("33\\quad\\text{cm}", "33\\text{ cm}"),
    # a thousands separator next to a unit, a constant or a name, and in a fraction
    ("\\$1,234.50", "1234.5"), ("\\$1,234.50", "\\$1{,}234.50"), ("1,234.5\\text{ cm}", "1234.5"),
    ("12,345.6\\%", "12345.6"), ("1,234\\pi", "1234\\pi"), ("1,234\\sqrt2", "1234\\sqrt2"), ("-1,234x", "-1234x"),
    ("\\frac{1,234}{5}", "\\frac{1234}{5}"), ("1,234\\frac12", "1234.5"), ("x=81,256", "81256"),
    ("x=81,256", "x=81256"), ("f(1,234)", "f(1,234)"), ("1,234,567\\pi", "1234567\\pi"), ("x\\le1,234", "x\\le1234"),
    # adjacent formulas are a list
    ("$81$,$256$", "81, 256"), ("$81$, $256$", "256, 81"), ("$81$ $256$", "81, 256"), ("$1$,$204$,$7$", "1, 204, 7"),
    # named values have the order in which they are listed, but those of one letter have none
    ("x = -5, p = \\frac{14}{3}", "-5, \\frac{14}{3}"), ("x=-5, p=14/3", "(-5, \\frac{14}{3})"),
    ("y=5, x=4", "5, 4"), ("(y,x)=(5,4)", "(5,4)"), ("x=1, y=2, z=3", "(1,2,3)"), ("AB=4, CD=5", "(4,5)"),
    ("x_1=4,x_2=5", "\\{4,5\\}"), ("x_2=5,x_1=4", "4, 5"), ("x=4,x=5", "5, 4"),
    ("x=1,y=2;x=3,y=4", "(3,4),(1,2)"), ("x=1,y=2\\text{ or }x=3,y=4", "y=4,x=3,y=2,x=1"),
    ("r=2,\\theta=\\pi", "(2,\\pi)"),
    ("AB=4\\\\CD=5", "AB=4, CD=5"), ("x=4\\land y=5", "x=4, y=5"), ("x=4\\lor x=5", "4, 5"), ("4\\lor5", "4, 5"),
    # functions by cases, piece by piece; equations without conditions are a list
    *((ABSOLUTE, same) for same in (
        r"\begin{cases} -x, & x<0,\\ x, & x \geq 0.\end{cases}",
        r"\begin{cases}x&\text{for }0\le x\\-x&\text{when }x<0\end{cases}",
        r"\left\{\begin{array}{ll} x & \text{if } x\ge 0 \\ -x & \text{if $x<0$}\end{array}\right.",
        r"\begin{cases} 2x-x & \text{if } x \ge 0 \\ x(-1) & \text{if } 0>x \end{cases}",
        r"\begin{cases} x & x \in [0,\infty) \\ -x & \text{if } x < 0 \end{cases}",
        r"\begin{cases} x & \mbox{if } x \ge 0 \\ -x & \mbox{if } x < 0 \end{cases}",
        r"f(x) = \begin{cases} x & x \ge 0 \\ -x & x < 0 \end{cases}",
    )),
    (r"\begin{cases}0&\text{otherwise}\\1&\text{if $n$ is even}\end{cases}", PARITY),
    (r"\begin{cases}1,&n \text{ is even,}\\0,&\text{else.}\end{cases}", PARITY),
    (r"\begin{cases}x=1\\y=2\end{cases}", "x=1,y=2"), (r"\begin{cases}x=1\\y=2\end{cases}", "(1,2)"),
    # powers of matrices
    ("2" + SHEAR + "^2", r"\begin{pmatrix}2&4\\0&2\end{pmatrix}"),
    (SHEAR + "^2" + SHEAR, r"\begin{pmatrix}1&3\\0&1\end{pmatrix}"),
    (SHEAR + "^2+" + SHEAR, r"\begin{pmatrix}2&3\\0&2\end{pmatrix}"),
    (r"\left(\begin{array}{cc}1&1\\0&1\end{array}\right)^{3}", r"\begin{bmatrix}1&3\\0&1\end{bmatrix}"),
    (r"\begin{pmatrix}0&a\\1&0\end{pmatrix}^2", r"\begin{pmatrix}a&0\\0&a\end{pmatrix}"),
    (r"\begin{pmatrix}0&1\\1&0\end{pmatrix}^{-1}", r"\begin{pmatrix}0&1\\1&0\end{pmatrix}"),
    # logarithms and divisors
    (r"\log^2_2(3)", r"(\log_2 3)^2"), (r"\log^2_2 3", r"\log_2^2 3"), (r"\log^2_2(8)", "9"), (r"\lg 100", "2"),
    (r"\lg(1000)", "3"), (r"\lg 2", r"\log_{10} 2"), (r"\lg{2}", r"\log_{10} 2"), (r"\lg^2 100", "4"),
    (r"\frac{\ln 2}{\ln 10}", r"\lg 2"), (r"2\lg 5", r"\lg 25"), (r"\lg x^2", r"\log_{10} x^2"),
    (r"\gcd(a,b)", r"\gcd(a,b)"), (r"\gcd(12,18)\cdot x", "6x"), (r"\gcd(\operatorname{lcm}(4,6),18)", "6"),
    (r"\gcd(12,18)^2", "36"), (r"\frac{\gcd(12,18)}{5}", r"\frac65"), (r"\gcd(12,18),5", "5,6"),
    (r"\gcd(12,18,27)", "3"), ("5\\text{sec}", "5\\text{ seconds}"),
    # differences of sets, brackets that are turned around, lists of one value, commas
    (r"\mathbb{R}\setminus\{\sqrt2, 0\}", r"\mathbb{R}\setminus\{0,\sqrt{2}\}"),
    (r"\mathbb{Z}\setminus\{0\}", r"\mathbb{Z}\setminus\{ 0 \}"), ("5m/s", r"\frac{5m}{s}"),
    ("[0,\\infty[", "[0,\\infty)"), ("]0,1[", "(0,1)"), ("]0,1]", "(0,1]"), ("\\left]0,1\\right[", "(0,1)"),
    ("[0,1[ \\cup ]2,3]", "[0,1)\\cup(2,3]"), ("x\\in\\ ]0,1[", "0<x<1"), ("[1,2],[3,4]", "[1, 2], [3, 4]"),
    ("[[1,2],[3,4]]", "[[1, 2], [3, 4]]"), ("x+11, 11+x", "11+x"), ("0.5, \\frac12", "1/2"),
    ("(1,234,5)", "(1, 234, 5)"),
    # a modulus is like a unit; that there is nothing needs no \text
    ("204 \\pmod{1000}", "204"), ("n \\equiv 4 \\pmod 7", "n\\equiv4\\pmod{7}"),
    ("\\text{no solution}", "no solution"), ("No solutions", "\\text{no solution}"),
    ("\\text{There are no real solutions}", "No real solution"),
]  # fmt: skip
UNEQUAL = [
    # numbers
    ("\\frac{1}{2}", "0.51"), ("\\frac13", "0.333333"), ("\\sqrt2", "1.414214"), ("\\frac12", "\\frac21"),
    ("2(3)", "5"),
    ("3\\frac12", "\\frac32"), ("1\\frac12", "\\frac12"), ("0.\\overline{3}", "0.3"), ("10^{-9}", "2\\cdot10^{-9}"),
    ("10^{-20}\\sqrt2", "10^{-20}\\sqrt3"), ("\\sqrt{10^{40}+1}", "10^{20}"), ("5", "5\\text{ million}"), ("3 3", "33"),
    ("5!", "5"), ("\\frac{1}{0}", "\\frac{2}{0}"), ("1.2.3", "1.2"), ("-5", "5"), ("2^3^2", "64"), ("2^3^2", "512"),
    ("0,204.5", "204.5"), ("1011₂", "10112"), ("2½", "1"), ("7!!", "(7!)!"), ("12", "1,2"),
    # expressions
    ("A", "a"), ("xy", "x"), ("xyz", "xy"), ("x+1", "x-1"), ("\\Gamma", "\\gamma"), ("f'(x)", "f(x)"), ("x_1", "x_2"),
    ("X_{12}", "x_{12}"), ("2^{-40}x", "2^{-41}x"), ("\\sin x", "\\cos x"), ("e", "E"), ("\\sqrt{x^2}", "x"),
    ("x", "y"),
    ("\\log x", "\\ln x"), ("\\overline{AB}", "AB"), ("3i", "3"), ("\\sin 30", "\\sin 30^\\circ"), ("3", "3x"),
    ("ABC", "CAB"), ("MN", "NM"), ("I", "i"), ("2I", "2i"), ("I", "1"), ("N", "n"), ("2E+1", "20"), ("E", "e"),
    ("\\sin^{-1}(1)", "\\frac{1}{\\sin 1}"),
    # units
    ("5\\text{ m}/\\text{s}", "5\\text{ m}"), ("5\\text{ m/s}", "5\\text{ m/s}^2"),
    ("5\\text{ km/h}", "5\\text{ miles per hour}"),
    ("50\\%", "0.5"), ("50\\%", "\\frac12"), ("147\\text{ cm}", "147\\text{ m}"), ("5^\\circ", "5\\%"),
    ("3\\text{ cm}^2", "3\\text{ cm}^3"), ("\\$5", "5\\text{ cents}"), ("6\\text{ or more}", "6"),
    ("5\\pi\\text{ m}", "5\\text{ m}"),
    # tuples, intervals, sets, lists
    ("(1,2)", "[1,2]"), ("(1,2)", "[1,2)"), ("[1,2)", "(1,2]"), ("(1,2)", "\\{1,2\\}"), ("(1,2)", "1,2"),
    ("(1,2)", "(2,1)"),
    ("\\{1,2\\}", "1"), ("\\{1,2\\}", "\\{1\\}"), ("\\{1,2\\}", "\\{1,2,2\\}"), ("\\{1,2\\}", "\\{1,3\\}"),
    ("(1,2,3)", "(1,2)"),
    ("\\infty", "-\\infty"), ("(0,\\infty)", "[0,\\infty)"), ("(1,2)\\cup(3,4)", "(1,2)"),
    ("(1,2)\\cup(3,4)", "(1,2)\\cup(3,5)"),
    ("\\pm 3", "3"), ("\\pm 3", "-3"), ("1\\pm\\sqrt2", "1+\\sqrt2"), ("\\emptyset", "0"),
    ("\\{0\\}", "\\emptyset"), ("1", "1,1"),
    ("\\{\\{1\\},\\{2\\}\\}", "\\{1,2\\}"), ("\\{\\{1,2\\}\\}", "\\{1,2\\}"), ("\\{\\{1\\}\\}", "1"),
    ("\\{\\emptyset\\}", "\\emptyset"),
    ("\\{1,2\\},\\{3\\}", "1,2,3"), ("(\\{1\\},2)", "(1,2)"), ("\\{\\{1,2\\},3\\}", "\\{1,2,3\\}"),
    ("\\{1,\\emptyset\\}", "1"),
    ("\\{x|x>2\\}", "[2,\\infty)"), ("\\{x|x>2\\}", "\\{2\\}"), ("\\{1,\\ldots,9\\}", "\\{1,9\\}"),
    # relations
    ("x=5", "y=5"), ("x<5", "y<5"), ("x<5", "x>5"), ("x<5", "x\\le5"), ("x\\ne5", "x=5"), ("y=2x+1", "y=2x-1"),
    ("x=5", "6"),
    ("x+y=3", "2x+y=3"), ("2x<4", "2-x<0"), ("1<x<2", "1<x\\le2"), ("1<x<2", "(1,2]"),
    ("x=1,y=2", "x=2,y=1"),
    ("x^2+y^2=4", "x^2+y^2=2"), ("x=5=6", "6"), ("(x,y)=(1,2)", "(2,1)"), ("(x,y)=(1,2)", "(y,x)=(1,2)"),
    # bases, words, matrices
    ("101_2", "101_3"), ("101_2", "101"), ("101_2", "5"), ("101_2", "1010_2"), ("\\text{even}", "\\text{odd}"),
    ("\\text{east}", "\\text{seat}"), ("\\text{east}", "seat"), ("east", "seat"), ("\\text{(A)}", "\\text{(B)}"),
    ("C", "B"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1&2\\end{pmatrix}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1,2)"),
    # absurd sizes
    ("9^{9^{9}}", "9^{9^{8}}"), ("(9!)!", "5"), ("9!!!", "7"), ("2^{99999999}", "2^{99999998}"),
    ("999999999!", "1"), ("9^9^9^9", "9"), (r"\binom{99999999}{9999999}", "1"), ("((x+1)^{999})^{999}", "x"),
    (r"\exp(\exp(\exp(99)))", "7"), (r"(((x+1)^{99})^{99})^{99}", "7"), ("e^{e^{e^{e^9}}}", "1"),
    # functions with an index or a power
    ("\\log_2(3)", "\\log_3(2)"), ("\\sin^2(x)", "\\sin(x^2)"), ("\\log_2(3)", "2\\log(3)"),
    ("\\cos^2(x)", "\\cos(2x)"),
    # lists, separators and powers of ten
    ("81, 256", "81256"), ("32, 349", "32349"), ("81{,} 256", "81256"),
    ("81,\\,256", "81256"), ("81, 256", "81"),
    ("81 ,256", "81256"), ("81, 256, 7", "81{,}256, 7"), ("4.5e33", "4.5"), ("4.5e33", "4.5e34"), ("2e-1", "0.2"),
    ("\\sqrt[3]{-8}", "2"), ("10^{-130}", "2\\cdot10^{-130}"), ("4+10^{-60}\\sqrt2", "4"),
    ("\\frac{1}{2004!}", "\\frac{1}{2006!}"), ("1/2004!", "1/2006!"), ("1-\\frac{1}{2004!}", "1-\\frac{1}{2006!}"),
    ("5\\text{ 3}", "53"), ("\\mathrm{e}", "E"), ("\\text{I}", "i"),
    ("\\sqrt2", "1.41421356237309504880168872420969807856967187537694"), ("e^{\\pi\\sqrt{163}}", "640320^3+744"),
    # matrices
    (f"{MATRIX}{VECTOR}", f"{VECTOR}{MATRIX}"), (f"{MATRIX}+{VECTOR}", MATRIX), (f"2{MATRIX}", f"{MATRIX}"),
    ("\\left|\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right|", MATRIX), (f"{MATRIX}^2", MATRIX),
    (f"1+{MATRIX}", MATRIX),
    (f"{MATRIX}\\begin{{pmatrix}}0&1\\\\1&0\\end{{pmatrix}}", "\\begin{pmatrix}3&4\\\\1&2\\end{pmatrix}"),
    # answers in parts
    ("AB=4, CD=5", "5, 4"), ("AB=4, CD=5", "AB=5, CD=4"), ("AB=4, CD=5", "4"), ("AB=4, CD=5", "AB=4"),
    ("x=1,y=2", "2,1"),
    ("x=1,y=2", "(2,1)"), ("y=1,x=2", "(x,y)=(1,2)"), ("AB=4, CD=5", "AB=4, EF=5"), ("AB=4", "CD=4"),
    ("AB:CD=2", "CD:AB=2"),
    ("2e3", "2000"), ("205\\quad 204", "205204"), ("205\\quad x=204", "x=204"),
    # a blank after the comma makes a list; so do the brackets of a tuple or a set
    ("1, 234.5", "\\$1,234.50"), ("1, 234.5", "1,234.5\\text{ cm}"), ("1, 234\\pi", "1234\\pi"),
    ("\\frac{1, 234}{5}", "\\frac{1234}{5}"), ("x=81, 256", "81256"), ("(1,234\\pi)", "1234\\pi"),
    ("\\{1,234\\}", "1234"), ("x_{1,234}", "x_{1234}"), ("1,23\\pi", "123\\pi"), ("0,234\\pi", "234\\pi"),
    ("1,234\\pi,5", "1234\\pi,5"), ("1,234\\pi \\text{ or } 5", "1234\\pi, 5"), ("f(1,234)", "f(1234)"),
    # adjacent formulas are a list
    ("$81$,$256$", "81256"), ("$81$ $256$", "81256"), ("$1$,$204$", "1204"), ("$1$,204", "1204"), ("1,$204$", "1204"),
    ("$1$~$204$", "1204"), ("$1$,\\,$204$", "1204"), ("**1**,**204**", "1204"), ("$1$,$204$,$300$", "1204300"),
    ("\\(1\\),\\(204\\)", "1204"),
    # named values have the order in which they are listed; a set names nothing
    ("x = -5, p = \\frac{14}{3}", "\\frac{14}{3}, -5"), ("y=5, x=4", "(4,5)"), ("x=5, y=4", "(4,5)"),
    ("AB=4, CD=5", "\\{4,5\\}"), ("x=4, y=5", "\\{4,5\\}"), ("(y,x)=(4,5)", "(5,4)"), ("x=4,y=5", "4,5,6"),
    ("x=1,y=2;x=3,y=4", "(1,2),(4,3)"), ("x=1,y=2;x=3,y=4", "1,2,3,4"), ("x=1,y=2;x=3,y=4", "(1,2)"),
    ("x=1,y=2,x=3,z=4", "(1,2),(3,4)"),
    # functions by cases
    *((ABSOLUTE, other) for other in (
        r"\begin{cases} x & x > 0 \\ -x & x<0\end{cases}", r"\begin{cases} x & x < 0 \\ -x & x\ge 0\end{cases}",
        r"\begin{cases} x & x \ge 0\end{cases}", r"\begin{cases} x & x \ge 0 \\ -x & x<0\\ 0 & x=7\end{cases}",
        r"\begin{cases} x & x \ge 0 \\ -2x & x<0\end{cases}", r"\begin{pmatrix} x & x\ge0\\-x&x<0\end{pmatrix}",
        "x", "-x", "x,-x",
    )),
    (r"\begin{cases}0&\text{if $n$ is even}\\1&\text{otherwise}\end{cases}", PARITY),
    (r"\begin{cases}1&\text{if $n$ is odd}\\0&\text{otherwise}\end{cases}", PARITY),
    (r"\begin{cases}x=1\\y=2\end{cases}", "(2,1)"),
    # powers of matrices that have no value
    (r"\begin{pmatrix}1&2\end{pmatrix}^2", r"\begin{pmatrix}1&4\end{pmatrix}"),
    (r"\begin{pmatrix}2&1\\1&1\end{pmatrix}^{9999}", r"\begin{pmatrix}1&4\\1&1\end{pmatrix}"),
    # logarithms and divisors
    (r"\log^2_2(3)", r"\log_2 9"), (r"\lg 2", r"\ln 2"), (r"\lg 100", "10"), (r"\gcd(a,b)", r"\gcd(a,c)"),
    # differences of sets, brackets, lists, quotients
    (r"\mathbb{Z}\setminus\{0\}", r"\mathbb{R}\setminus\{0\}"), (r"A\setminus B", r"B\setminus A"),
    ("]0,1[", "[0,1]"), ("[0,1[ \\cup ]2,3]", "[0,1]"), ("[1,2],[3,4]", "(1,2],(3,4]"),
    ("[[1,2],[3,4]]", "((1,2],(3,4]]"), ("x+11, 11+x", "12+x"), ("x+11, 12+x", "x+11"), ("5, 6", "5"), ("5, 5", "5"),
    ("(5, 5)", "5"), ("x=5, y=5", "5"), ("\\{\\}", "5"), ("(1,234,5)", "(1234, 5)"), ("5m/s", "5"),
    (r"\frac{m}{s}", "1"),
    # moduli, and that there is nothing
    ("1204 \\pmod{1000}", "204"), ("4 \\pmod 5", "4 \\pmod 7"), ("no solution", "2"),
    ("no solution", "\\text{two solutions}"), ("no solution", "no real solution"),
]  # fmt: skip
