# ruff: noqa: E501
"""A program is edited between two runs: what must be refused or computed again, and what must be accepted.

Each case is tried in a state, a cache in a folder, a saved folder and a column.
"""

import pytest
from helpers.edited_programs import Edit, run_both

RANGE = "bushel.MapDataset.range(8)"

# Each has VALUE in it, which an edit changes. `ds` is a pipeline of numbers.
CHANGED = {
    "helper": "def helper(x): return x * VALUE\ndef f(x): return helper(x)\nds = RANGE.map(f)",
    "helper of a helper": "def a(x): return x * VALUE\ndef b(x): return a(x)\nds = RANGE.map(lambda x: b(x))",
    "constant": "SCALE = VALUE\nds = RANGE.map(lambda x: x * SCALE)",
    "array": "MEAN = np.full(3, VALUE)\nds = RANGE.map(lambda x: x * int(MEAN[1]))",
    "one entry of a large array": "A = np.ones(10**6, int)\nA[77777] = VALUE\nds = RANGE.map(lambda x: x * int(A[77777]))",
    "one word of a large vocabulary": (
        "WORDS = {f'w{n}': n for n in range(100_000)}\nWORDS['w500'] = VALUE\nds = RANGE.map(lambda x: x * WORDS['w500'])"
    ),
    "one number of a long list": "L = list(range(5000))\nL[77] = VALUE\nds = RANGE.map(lambda x: x * L[77])",
    "dict of arrays": "S = {'a': {'m': np.full(2, VALUE)}}\nds = RANGE.map(lambda x: x * int(S['a']['m'][0]))",
    "class attribute": "class T(bushel.transforms.Map):\n    K = VALUE\n    def map(self, x): return x * self.K\nds = RANGE.map(T())",
    "array as class attribute": (
        "class T(bushel.transforms.Map):\n    K = np.array([VALUE])\n    def map(self, x): return x * int(self.K[0])\nds = RANGE.map(T())"
    ),
    "dict as class attribute": (
        "class T(bushel.transforms.Map):\n    K = {'a': [VALUE]}\n    def map(self, x): return x * self.K['a'][0]\nds = RANGE.map(T())"
    ),
    "attribute of a base class": (
        "class B(bushel.transforms.Map):\n    K = VALUE\nclass T(B):\n    def map(self, x): return x * self.K\nds = RANGE.map(T())"
    ),
    "attribute of the class of a helper object": (
        "class H:\n    K = VALUE\nclass T:\n    def __init__(self): self.h = H()\n    def __call__(self, x): return x * self.h.K\nds = RANGE.map(T())"
    ),
    "method of the class of a helper object": (
        "class H:\n    def by(self): return VALUE\nclass T:\n    def __init__(self): self.h = H()\n"
        "    def __call__(self, x): return x * self.h.by()\nds = RANGE.map(T())"
    ),
    "default of a function": "def f(x, by=VALUE): return x * by\nds = RANGE.map(f)",
    "default of a method": "class T(bushel.transforms.Map):\n    def map(self, x, by=VALUE): return x * by\nds = RANGE.map(T())",
    "keyword default of a helper": "def h(x, *, by=VALUE): return x * by\nds = RANGE.map(lambda x: h(x))",
    "property": (
        "class T(bushel.transforms.Map):\n    @property\n    def by(self): return VALUE\n    def map(self, x): return x * self.by\nds = RANGE.map(T())"
    ),
    "cached property": (
        "class T(bushel.transforms.Map):\n    @functools.cached_property\n    def by(self): return VALUE\n"
        "    def map(self, x): return x * self.by\nds = RANGE.map(T())"
    ),
    "static method": (
        "class T(bushel.transforms.Map):\n    @staticmethod\n    def by(): return VALUE\n    def map(self, x): return x * self.by()\nds = RANGE.map(T())"
    ),
    "class method": (
        "class T(bushel.transforms.Map):\n    @classmethod\n    def by(cls): return VALUE\n    def map(self, x): return x * self.by()\nds = RANGE.map(T())"
    ),
    "operator of a class": (
        "class N:\n    def __mul__(self, x): return x * VALUE\nN1 = N()\nds = RANGE.map(lambda x: N1 * x)"
    ),
    "getattr of a class": (
        "class N:\n    def __getattr__(self, name): return VALUE\nN1 = N()\nds = RANGE.map(lambda x: N1.anything * x)"
    ),
    "descriptor": (
        "class D:\n    def __get__(self, o, kind=None): return VALUE\nclass T:\n    by = D()\n    def __call__(self, x): return x * self.by\nds = RANGE.map(T())"
    ),
    "metaclass": (
        "class M(type):\n    @property\n    def by(cls): return VALUE\nclass T(metaclass=M): pass\nds = RANGE.map(lambda x: x * T.by)"
    ),
    "closure": "def make(by):\n    return lambda x: x * by\nds = RANGE.map(make(VALUE))",
    "closure of a method": (
        "def make(by):\n    class T(bushel.transforms.Map):\n        def map(self, x): return x * by\n    return T()\nds = RANGE.map(make(VALUE))"
    ),
    "closure over a function": (
        "def make(f):\n    return lambda x: f(x)\ndef g(x): return x * VALUE\nds = RANGE.map(make(g))"
    ),
    "named tuple with __call__": (
        "class T(NamedTuple):\n    by: int\n    def __call__(self, x): return x * self.by\nds = RANGE.map(T(VALUE))"
    ),
    "code of a named tuple": (
        "class T(NamedTuple):\n    by: int\n    def __call__(self, x): return x * self.by * VALUE\nds = RANGE.map(T(3))"
    ),
    "method of a named tuple": (
        "class T(NamedTuple):\n    by: int\n    def f(self, x): return x * self.by\nds = RANGE.map(T(VALUE).f)"
    ),
    "default of a named tuple": ("class T(NamedTuple):\n    by: int = VALUE\nds = RANGE.map(lambda x: x * T().by)"),
    "dict with __call__": "class T(dict):\n    def __call__(self, x): return x * self['by']\nds = RANGE.map(T(by=VALUE))",
    "code of a dict with __call__": "class T(dict):\n    def __call__(self, x): return x * VALUE\nds = RANGE.map(T(by=1))",
    "dict with __missing__": "class T(dict):\n    def __missing__(self, x): return x * VALUE\nM = T()\nds = RANGE.map(lambda x: M[x])",
    "factory of a defaultdict": "M = collections.defaultdict(lambda: VALUE)\nds = RANGE.map(lambda x: x * M['a'])",
    "list subclass": "class L(list):\n    def by(self): return VALUE\nM = L()\nds = RANGE.map(lambda x: x * M.by())",
    "attribute of a function": "def f(x): return x * f.by\nf.by = VALUE\nds = RANGE.map(f)",
    "attribute of a helper": "def h(): pass\nh.by = VALUE\nds = RANGE.map(lambda x: x * h.by)",
    "partial": "def f(x, by): return x * by\nds = RANGE.map(functools.partial(f, by=VALUE))",
    "function in a partial": "def f(x, by): return x * by * VALUE\nds = RANGE.map(functools.partial(f, by=2))",
    "global partial": "def f(x, by): return x * by\nG = functools.partial(f, by=VALUE)\nds = RANGE.map(lambda x: G(x))",
    "lru_cache": "@functools.lru_cache\ndef h(x): return x * VALUE\nds = RANGE.map(lambda x: h(x))",
    "lru_cache itself": "@functools.lru_cache\ndef h(x): return x * VALUE\nds = RANGE.map(h)",
    "wraps": (
        "def twice(f):\n    @functools.wraps(f)\n    def g(x): return f(x) * 2\n    return g\n@twice\ndef h(x): return x * VALUE\nds = RANGE.map(h)"
    ),
    "what wraps": (
        "def times(f):\n    @functools.wraps(f)\n    def g(x): return f(x) * VALUE\n    return g\n@times\ndef h(x): return x\nds = RANGE.map(h)"
    ),
    "singledispatch": (
        "@functools.singledispatch\ndef h(x): return x\n@h.register\ndef _(x: int): return x * VALUE\nds = RANGE.map(lambda x: h(x))"
    ),
    "singledispatch itself": (
        "@functools.singledispatch\ndef h(x): return x\n@h.register\ndef _(x: int): return x * VALUE\nds = RANGE.map(h)"
    ),
    "singledispatchmethod": (
        "class T:\n    @functools.singledispatchmethod\n    def h(self, x): return x\n    @h.register\n    def _(self, x: int): return x * VALUE\n"
        "    def __call__(self, x): return self.h(x)\nds = RANGE.map(T())"
    ),
    "partialmethod": (
        "class T:\n    def h(self, x, by): return x * by\n    g = functools.partialmethod(h, by=VALUE)\n    def __call__(self, x): return self.g(x)\nds = RANGE.map(T())"
    ),
    "context manager": (
        "@contextlib.contextmanager\ndef by():\n    yield VALUE\ndef f(x):\n    with by() as n: return x * n\nds = RANGE.map(f)"
    ),
    "vectorize": "H = np.vectorize(lambda x: x * VALUE)\nds = RANGE.map(lambda x: int(H(x)))",
    "callables in containers": (
        "STEPS = [('a', lambda x: x + 1), ('b', lambda x: x * VALUE)]\ndef f(x):\n    for _, s in STEPS: x = s(x)\n    return x\nds = RANGE.map(f)"
    ),
    "function in a dict": "F = {'a': {'b': lambda x: x * VALUE}}\nds = RANGE.map(lambda x: F['a']['b'](x))",
    "bound method of a global": (
        "class H:\n    def __init__(self, by): self.by = by\n    def f(self, x): return x * self.by\nG = H(VALUE).f\nds = RANGE.map(lambda x: G(x))"
    ),
    "slots": (
        "class T:\n    __slots__ = ('by',)\n    def __init__(self, by): self.by = by\n    def __call__(self, x): return x * self.by\nds = RANGE.map(T(VALUE))"
    ),
    "private slots": (
        "class T:\n    __slots__ = ('__by',)\n    def __init__(self, by): self.__by = by\n    def __call__(self, x): return x * self.__by\nds = RANGE.map(T(VALUE))"
    ),
    "dataclass": (
        "@dataclasses.dataclass\nclass T:\n    by: int = VALUE\n    def __call__(self, x): return x * self.by\nds = RANGE.map(T())"
    ),
    "field that follows from others": (
        "@dataclasses.dataclass\nclass T:\n    def __post_init__(self): self.by = VALUE\n    def __call__(self, x): return x * self.by\nds = RANGE.map(T())"
    ),
    "attribute of a namespace": "ARGS = types.SimpleNamespace(by=VALUE, other=1)\nds = RANGE.map(lambda x: x * ARGS.by)",
    "attribute of a config class": "class C:\n    by = VALUE\nds = RANGE.map(lambda x: x * C.by)",
    "enum": "class E(enum.Enum):\n    A = VALUE\nds = RANGE.map(lambda x: x * E.A.value)",
    "method of an enum": (
        "class E(enum.Enum):\n    A = 1\n    def by(self): return VALUE\nds = RANGE.map(lambda x: x * E.A.by())"
    ),
    "regular expression": "P = re.compile('VALUE')\nds = RANGE.map(lambda x: len(P.findall('123')) + x * len(P.pattern) * VALUE)",
    "object in a chain": (
        "class N:\n    def __init__(self, v, n): self.v, self.n = v, n\nG = None\nfor _ in range(300): G = N(1, G)\nG2 = G\n"
        "while G2.n: G2 = G2.n\nG2.v = VALUE\ndef f(x):\n    n = G\n    while n.n: n = n.n\n    return x * n.v\nds = RANGE.map(f)"
    ),
    "deep list": (
        "D = VALUE\nfor _ in range(200): D = [D]\ndef f(x):\n    d = D\n    while isinstance(d, list): d = d[0]\n    return x * d\nds = RANGE.map(f)"
    ),
    "class made by the function": (
        "class N:\n    def __init__(self, x): self.x = x * VALUE\nds = RANGE.map(lambda x: N(x).x)"
    ),
    "subclass hook": (
        "class B:\n    def __init_subclass__(cls): cls.by = VALUE\nclass T(B):\n    def __call__(self, x): return x * self.by\nds = RANGE.map(T())"
    ),
    "generator helper": "def g(x):\n    yield x * VALUE\nds = RANGE.map(lambda x: next(g(x)))",
    "try statement": "def f(x):\n    try: return x // 0\n    except ZeroDivisionError: return x * VALUE\nds = RANGE.map(f)",
    "nested function": "def f(x):\n    def g(y):\n        def h(z): return z * VALUE\n        return h(y)\n    return g(x)\nds = RANGE.map(f)",
    "class inside a function": "def f(x):\n    class A:\n        K = VALUE\n    return x * A.K\nds = RANGE.map(f)",
    "weights of a mixture of 200": (
        "W = [1] * 200\nW[77] = VALUE\nds = bushel.MapDataset.mix([bushel.MapDataset.range(n * 10, n * 10 + 9) for n in range(200)], W)"
    ),
    "filter": "LIMIT = VALUE\nds = RANGE.filter(lambda x: x >= LIMIT)",
    "random map": ("ds = RANGE.seed(1).random_map(lambda x, rng: int(rng.integers(100)) * SCALE)\nSCALE = VALUE"),
    "batch function": "S = VALUE\nds = RANGE.batch(2, batch_fn=lambda rows: sum(rows) * S)",
    "source in memory": "ds = bushel.MapDataset.source([VALUE, *range(7)])",
    "one of 1,000 records": "R = list(range(1000))\nR[1] = VALUE\nds = bushel.MapDataset.source(R)",
    "own source": (
        "class S:\n    def __init__(self, rows): self.rows = rows\n    def __len__(self): return len(self.rows)\n"
        "    def __getitem__(self, i): return self.rows[i]\nds = bushel.MapDataset.source(S([VALUE, 1, 2]))"
    ),
    "code of an own source": (
        "class S:\n    def __len__(self): return 5\n    def __getitem__(self, i): return i * VALUE\nds = bushel.MapDataset.source(S())"
    ),
    "own dataset": (
        "class D(bushel.MapDataset):\n    def __init__(self, p, by):\n        super().__init__(p)\n        self.by = by\n"
        "    def __len__(self): return len(self._parent)\n    def __getitem__(self, i): return self._parent[i] * self.by\nds = RANGE.pipe(D, VALUE)"
    ),
    "helper of an own dataset": (
        "def h(x): return x * VALUE\nclass D(bushel.MapDataset):\n    def __len__(self): return len(self._parent)\n"
        "    def __getitem__(self, i): return h(self._parent[i])\nds = RANGE.pipe(D)"
    ),
    "generator": (
        "from bushel import IterDataset\ndef rows():\n    for n in range(5): yield n * VALUE\nds = IterDataset.source(rows)"
    ),
    "iterable": "from bushel import IterDataset\nds = IterDataset.source([VALUE, 2])",
    "jit": "import jax\n@jax.jit\ndef h(x): return x * VALUE\nds = RANGE.map(lambda x: int(h(x)))",
    "jit itself": "import jax\nds = RANGE.map(jax.jit(lambda x: x * VALUE))",
    "vmap": "import jax\nds = RANGE.batch(2).map(jax.vmap(lambda x: x * VALUE)).map(lambda x: int(x.sum()))",
    "jax array": "import jax.numpy as jnp\nM = jnp.full(3, VALUE)\nds = RANGE.map(lambda x: x * int(M[0]))",
    "very large number": "P = 10**5000 + VALUE\nds = RANGE.map(lambda x: x * (P % 10))",
    "memoryview": "P = memoryview(b'VALUE')\nds = RANGE.map(lambda x: x * P[0])",
    "class of an array": (
        "class A(np.ndarray):\n    def by(self): return VALUE\nP = np.ones(2).view(A)\nds = RANGE.map(lambda x: x * P.by())"
    ),
    "attribute of an array": (
        "class A(np.ndarray): pass\nP = np.ones(2).view(A)\nP.by = VALUE\ndef by(p): return p.by\nds = RANGE.map(lambda x: x * by(P))"
    ),
    "matrix": "P = [np.array, np.matrix][VALUE - 2]([[1, 2], [3, 4]])\nds = RANGE.map(lambda x: x * int((P * P)[0, 0]))",
    "scalar and array of no dimension": (
        "P = [np.int64(1), np.array(1)][VALUE - 2]\nds = RANGE.map(lambda x: x * isinstance(P, np.ndarray))"
    ),
    "codes of categories": (
        "import pandas\nP = pandas.Series(pandas.Categorical(['a'], categories=[['a', 'b'], ['b', 'a']][VALUE - 2]))\n"
        "ds = RANGE.map(lambda x: x * int(P.cat.codes[0]))"
    ),
    "value under a mask": (
        "P = np.ma.array([1, 5], mask=[0, 1], fill_value=VALUE)\nds = RANGE.map(lambda x: x * int(P.filled().sum()))"
    ),
    "metadata of a field": (
        "@dataclasses.dataclass\nclass T:\n    by: int = dataclasses.field(default=1, metadata={'k': VALUE})\n"
        "ds = RANGE.map(lambda x: x * dataclasses.fields(T)[0].metadata['k'])"
    ),
    "type of a field of pydantic": (
        "import pydantic\nclass M(pydantic.BaseModel):\n    by: 'int' if VALUE == 2 else 'float' = 1\n"
        "ds = RANGE.map(lambda x: x * (type(M(by=1.0).by) is int))"
    ),
    "large dict of numbers": "P = {n: n for n in range(5000)}\nP[77] = VALUE\nds = RANGE.map(lambda x: x * P[77])",
    "format of a struct": "import struct\nP = struct.Struct('VALUEi')\nds = RANGE.map(lambda x: x * P.size)",
    "ctypes": "import ctypes\nP = ctypes.c_int(VALUE)\nds = RANGE.map(lambda x: x * P.value)",
    "structure of ctypes": (
        "import ctypes\nclass A(ctypes.Structure):\n    _fields_ = [('a', ctypes.c_int)]\nP = A(VALUE)\nds = RANGE.map(lambda x: x * P.a)"
    ),
    "structure of a tree": "import jax\nP = jax.tree.structure(list(range(VALUE)))\nds = RANGE.map(lambda x: x * P.num_leaves)",
    "comparison for sorting": (
        "K = functools.cmp_to_key(lambda a, b: (a - b) * (5 - 2 * VALUE))\nds = RANGE.map(lambda x: sorted([x, 9], key=K)[0])"
    ),
    "frompyfunc": "U = np.frompyfunc(lambda x: x * VALUE, 1, 1)\nds = RANGE.map(lambda x: U(x))",
    "deque of an own class": "class A(collections.deque): pass\nP = A([VALUE])\nds = RANGE.map(lambda x: x * P[0])",
    "date of an own class": (
        "import datetime\nclass A(datetime.date): pass\nP = A(2020, 1, VALUE)\nds = RANGE.map(lambda x: x * P.day)"
    ),
    "decimal of an own class": (
        "import decimal\nclass A(decimal.Decimal): pass\nP = A(VALUE)\nds = RANGE.map(lambda x: int(x * P))"
    ),
    "text file of an own class": (
        "import io\nclass A(io.StringIO): pass\nP = A('VALUE')\nds = RANGE.map(lambda x: x * int(P.getvalue()))"
    ),
    "array.array of an own class": (
        "import array\nclass A(array.array): pass\nP = A('i', [VALUE])\nds = RANGE.map(lambda x: x * P[0])"
    ),
    "exception of an own class": "class A(Exception): pass\nP = A(VALUE)\nds = RANGE.map(lambda x: x * P.args[0])",
    "partial of an own class": (
        "class A(functools.partial):\n    def __call__(self, x): return super().__call__(x) * VALUE\nds = RANGE.map(A(operator.mul, 3))"
    ),
    "path of an own class": (
        "class A(type(pathlib.Path())):\n    def by(self): return VALUE\nP = A('a')\nds = RANGE.map(lambda x: x * P.by())"
    ),
    "object in an own source": (
        "@dataclasses.dataclass\nclass Settings:\n    by: int\nclass S:\n    def __init__(self, by): self.settings = Settings(by)\n"
        "    def __len__(self): return 5\n    def __getitem__(self, i): return i * self.settings.by\nds = bushel.MapDataset.source(S(VALUE))"
    ),
    "function in an own source": (
        "class S:\n    def __init__(self, f): self.f = f\n    def __len__(self): return 5\n    def __getitem__(self, i): return self.f(i)\n"
        "ds = bushel.MapDataset.source(S(lambda i: i * VALUE))"
    ),
    "source in an own source": (
        "class S:\n    def __init__(self, s): self.s = s\n    def __len__(self): return 2\n    def __getitem__(self, i): return int(self.s[i])\n"
        "ds = bushel.MapDataset.source(S(bushel.sources.ArrayDataSource(np.array([1, VALUE]))))"
    ),
    "dataset in an own source": (
        "class S:\n    def __init__(self, s): self.s = s\n    def __len__(self): return 2\n    def __getitem__(self, i): return self.s[i]\n"
        "ds = bushel.MapDataset.source(S(bushel.MapDataset.range(2).map(lambda x: x * VALUE)))"
    ),
    "one of many records of a dataset that a function holds": (
        "R = [[n] for n in range(5000)]\nR[2501][0] = VALUE\nO = bushel.MapDataset.source(R)\n"
        "ds = bushel.MapDataset.range(2500, 2503).map(lambda x: O[x][0])"
    ),
    "table in an own source": (
        "import pandas\nclass S:\n    def __init__(self, t): self.t = t\n    def __len__(self): return 2\n    def __getitem__(self, i): return int(self.t.a[i])\n"
        "ds = bushel.MapDataset.source(S(pandas.DataFrame({'a': [1, VALUE]})))"
    ),
    "array of JAX in an own source": (
        "import jax.numpy as jnp\nclass S:\n    def __init__(self, t): self.t = t\n    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return int(self.t[i])\nds = bushel.MapDataset.source(S(jnp.array([1, VALUE])))"
    ),
    "deque as a source": "ds = bushel.MapDataset.source(collections.deque([1, VALUE]))",
    "array of JAX as a source": "import jax.numpy as jnp\nds = bushel.MapDataset.source(jnp.array([1, VALUE])).map(int)",
}

OF_EACH_PART = {"weights of a mixture of 200"}
"""Where a column belongs to the parts of a mixture, which do not change."""


def substitute(text, value):
    return text.replace("RANGE", RANGE).replace("VALUE", value)


MODULES = {
    "helper in a module": Edit(
        "import helper\nds = bushel.MapDataset.range(8).map(lambda x: helper.scale(x))\n",
        "import helper\nds = bushel.MapDataset.range(8).map(lambda x: helper.scale(x))\n",
        (("helper.py", "K = 2\ndef scale(x): return x * K\n", "K = 3\ndef scale(x): return x * K\n"),),
    ),
    "name from a module": Edit(
        "from helper import scale\nds = bushel.MapDataset.range(8).map(scale)\n",
        "from helper import scale\nds = bushel.MapDataset.range(8).map(scale)\n",
        (("helper.py", "def scale(x): return x * 2\n", "def scale(x): return x * 3\n"),),
    ),
    "module of a package": Edit(
        "import mine.inner as m\nds = bushel.MapDataset.range(8).map(lambda x: m.scale(x))\n",
        "import mine.inner as m\nds = bushel.MapDataset.range(8).map(lambda x: m.scale(x))\n",
        (
            ("mine/__init__.py", "", ""),
            (
                "mine/inner.py",
                "from .deep import K\ndef scale(x): return x * K\n",
                "from .deep import K\ndef scale(x): return x * K\n",
            ),
            ("mine/deep.py", "K = 2\n", "K = 3\n"),
        ),
    ),
    "import inside a function": Edit(
        "def f(x):\n    from helper import scale\n    return scale(x)\nds = bushel.MapDataset.range(8).map(f)\n",
        "def f(x):\n    from helper import scale\n    return scale(x)\nds = bushel.MapDataset.range(8).map(f)\n",
        (("helper.py", "def scale(x): return x * 2\n", "def scale(x): return x * 3\n"),),
    ),
    "import of an import inside a function": Edit(
        "def f(x):\n    import helper\n    return helper.scale(x)\nds = bushel.MapDataset.range(8).map(f)\n",
        "def f(x):\n    import helper\n    return helper.scale(x)\nds = bushel.MapDataset.range(8).map(f)\n",
        (
            (
                "helper.py",
                "from deep import K\ndef scale(x): return x * K\n",
                "from deep import K\ndef scale(x): return x * K\n",
            ),
            ("deep.py", "K = 2\n", "K = 3\n"),
        ),
    ),
    "field of a dataclass in a module that a function imports": Edit(
        "def f(x):\n    import helper\n    return x * helper.count()\nds = bushel.MapDataset.range(8).map(f)\n",
        "def f(x):\n    import helper\n    return x * helper.count()\nds = bushel.MapDataset.range(8).map(f)\n",
        (
            (
                "helper.py",
                "import dataclasses\n@dataclasses.dataclass\nclass A:\n    a: int = 1\n    b = 2\ndef count(): return len(dataclasses.fields(A))\n",
                "import dataclasses\n@dataclasses.dataclass\nclass A:\n    a: int = 1\n    b: int = 2\ndef count(): return len(dataclasses.fields(A))\n",
            ),
        ),
    ),
    "import of a folder without __init__ inside a function": Edit(
        "def f(x):\n    from folder import helper\n    return helper.scale(x)\nds = bushel.MapDataset.range(8).map(f)\n",
        "def f(x):\n    from folder import helper\n    return helper.scale(x)\nds = bushel.MapDataset.range(8).map(f)\n",
        (("folder/helper.py", "def scale(x): return x * 2\n", "def scale(x): return x * 3\n"),),
    ),
    "copied into site-packages": Edit(
        "sys = __import__('sys')\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'site-packages'))\n"
        "import helper\nds = bushel.MapDataset.range(8).map(helper.scale)\n",
        "sys = __import__('sys')\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'site-packages'))\n"
        "import helper\nds = bushel.MapDataset.range(8).map(helper.scale)\n",
        (("site-packages/helper.py", "def scale(x): return x * 2\n", "def scale(x): return x * 3\n"),),
    ),
}

# Not refused. Each is a program and another text of it that does the same.
SAME = {
    "nothing": ("ds = RANGE.map(lambda x: x + 1)", "ds = RANGE.map(lambda x: x + 1)"),
    "comment above jax.jit": (
        "import jax\n@jax.jit\ndef h(x): return x * 2\nds = RANGE.map(lambda x: int(h(x)))",
        "import jax\n# words\n\n@jax.jit\ndef h(x):\n    # words\n    return x * 2\nds = RANGE.map(lambda x: int(h(x)))",
    ),
    "docstring under lru_cache": (
        "@functools.lru_cache\ndef h(x):\n    'One.'\n    return x * 2\nds = RANGE.map(h)",
        "@functools.lru_cache\ndef h(x):\n    'Two, at length.'\n    return x * 2\nds = RANGE.map(h)",
    ),
    "docstring that comes": (
        "@functools.lru_cache\ndef h(x):\n    return x * 2.5\nds = RANGE.map(lambda x: int(h(x)))",
        "@functools.lru_cache\ndef h(x):\n    'Two.'\n    return x * 2.5\nds = RANGE.map(lambda x: int(h(x)))",
    ),
    "docstrings of classes": (
        "class T(bushel.transforms.Map):\n    def map(self, x): return x + 1\nds = RANGE.map(T())",
        "class T(bushel.transforms.Map):\n    'Words.'\n    # words\n\n    def map(self, x):\n        'Words.'\n        return x + 1\nds = RANGE.map(T())",
    ),
    "docstring of a class inside a function": (
        "def f(x):\n    class A:\n        K = 3\n    return x * A.K\nds = RANGE.map(f)",
        "\n\n\ndef f(x):\n    class A:\n        'Words.'\n        K = 3\n    return x * A.K\nds = RANGE.map(f)",
    ),
    "moved down": (
        "def make(by):\n    class T(NamedTuple):\n        a: int\n        def __call__(self, x): return x * by\n    return T(3)\nds = RANGE.map(make(2))",
        "# words\n" * 30 + "def make(by):\n    class T(NamedTuple):\n        a: int\n        def __call__(self, x): return x * by\n    return T(3)\nds = RANGE.map(make(2))",
    ),
    "what is not read": (
        "A = 1\nB = 1\ndef unused(): return 1\nds = RANGE.map(lambda x: x + A)",
        "A = 1\nB = 2\nC = 5\ndef unused(): return 2\nds = RANGE.map(lambda x: x + A)",
    ),
    "another attribute of a namespace": (
        "ARGS = types.SimpleNamespace(by=2, resume=False)\nds = RANGE.map(lambda x: x * ARGS.by)",
        "ARGS = types.SimpleNamespace(by=2, resume=True)\nds = RANGE.map(lambda x: x * ARGS.by)",
    ),
    "set": ("W = {'a', 'b', 'c', 'd'}\nds = RANGE.map(lambda x: x + ('a' in W))",) * 2,
    "set of functions": ("def g(x): return x\ndef h(x): return x + 1\nW = {g, h}\nds = RANGE.map(lambda x: sum(f(x) for f in W))",) * 2,
    "large set": ("W = {str(n) for n in range(1000)}\nds = RANGE.map(lambda x: x + ('a' in W))",) * 2,
    "dict from a set": ("T = {name: len(name) for name in {'a', 'bb', 'ccc'}}\nds = RANGE.map(lambda x: x + T['bb'])",) * 2,
    "set in an attribute": (
        "class T:\n    def __init__(self): self.w = frozenset({'a', 'b', ('c', 'd')})\n    def __call__(self, x): return x + len(self.w)\nds = RANGE.map(T())",
    ) * 2,
    "order of attributes": (
        "class T:\n    def __init__(self):\n        self.a = 1\n        self.b = 2\n    def __call__(self, x): return x + self.a\nt = T()\nds = RANGE.map(t)",
        "class T:\n    def __init__(self):\n        self.a = 1\n        self.b = 2\n    def __call__(self, x): return x + self.a\n"
        "t = T()\ndel t.a\nt.a = 1\nds = RANGE.map(t)",
    ),
    "order of keywords": (
        "def f(x, a, b): return x + a + b\nds = RANGE.map(functools.partial(f, a=1, b=2))",
        "def f(x, a, b): return x + a + b\nds = RANGE.map(functools.partial(f, b=2, a=1))",
    ),
    "memory layout": (
        "M = np.arange(6).reshape(2, 3)\nds = RANGE.map(lambda x: x + int(M[1, 2]))",
        "M = np.asfortranarray(np.arange(12)[::2].reshape(2, 3) // 2)\nds = RANGE.map(lambda x: x + int(M[1, 2]))",
    ),
    "file beside the program": (
        "ROOT = pathlib.Path(__file__).parent\nNAME = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'x')\n"
        "ds = RANGE.map(lambda x: x + len(ROOT.parts) * 0 + len(NAME) * 0)",
    ) * 2,
    "logger by module": ("import logging\nLOG = logging.getLogger(__name__)\ndef f(x):\n    LOG.debug('x')\n    return x\nds = RANGE.map(f)",) * 2,
    "name of the module": ("def f(x): return x + (0 if __name__ else 1)\nds = RANGE.map(f)",) * 2,
    "iterator in an attribute": (
        "class T:\n    def __init__(self): self.n = itertools.cycle('ab')\n    def __call__(self, x): return x + 1\nds = RANGE.map(T())",
    ) * 2,
    "handles": (
        "F = open(os.devnull)\nL = threading.Lock()\nG = (n for n in range(3))\nZ = zip('ab', 'cd')\nE = enumerate('ab')\nR = iter([1])\n"
        "def f(x):\n    with L: return x + (F is G) + (Z is E) + (R is None)\nds = RANGE.map(f)",
    ) * 2,
    "objects that cannot be read": (
        "class H:\n    def __getattribute__(self, n): raise RuntimeError(n)\nO = H()\nclass P:\n    @property\n    def __class__(self): raise ValueError\n"
        "Q = P()\nds = RANGE.map(lambda x: (O is Q) + x)",
    ) * 2,
    "files beside the program": (
        "FILES = [os.path.join(os.path.dirname(os.path.abspath(__file__)), n) for n in ['a', 'b'] * 100]\n"
        "class T:\n    def __init__(self, path): self.path = path\n    def __call__(self, x): return x + len(FILES)\nds = RANGE.map(T(FILES[0]))",
    ) * 2,
    "words of a dataclass": (
        "@dataclasses.dataclass\nclass A:\n    k: int = 1\nds = RANGE.map(lambda x: x + A().k)",
        "@dataclasses.dataclass\nclass A:\n    'Words.'\n\n    # words\n    k: int = 1\nds = RANGE.map(lambda x: x + A().k)",
    ),
    "annotations": ("def f(x: int) -> int: return x\nds = RANGE.map(f)", "def f(x: 'Foo') -> float: return x\nds = RANGE.map(f)"),
    "docstring of a model of pydantic": (
        "import pydantic\nclass M(pydantic.BaseModel):\n    by: int = 1\nds = RANGE.map(lambda x: x * M().by)",
        "import pydantic\n# words\nclass M(pydantic.BaseModel):\n    'Words.'\n    by: int = 1\nds = RANGE.map(lambda x: x * M().by)",
    ),
    "environment": ("def f(x):\n    os.environ.get('HOME')\n    return x\nds = RANGE.map(f)",) * 2,
    "library functions": (
        "import jax, jax.numpy as jnp\ndef f(x):\n    return int(jax.nn.relu(jnp.where(x > 1, x, 0)) + np.mean([x]) + np.sin(0) + jnp.add(0, 0))\nds = RANGE.map(f)",
    ) * 2,
}  # fmt: skip


HELPER = "def f(x):\n    from helper import scale\n    return scale(x)\nds = bushel.MapDataset.range(8).map(f)\n"
MODULES_SAME = {
    "annotations of a module that a function imports": Edit(
        HELPER,
        HELPER,
        (
            (
                "helper.py",
                "K = 1\ndef scale(x): return x * K\nclass A:\n    k: int = 1\n    async def f(self, x): return x\n",
                "K: int = 1\nL: str\ndef scale(x: int) -> int: return x * K\n"
                "class A:\n    k: 'float' = 1\n    async def f(self, x: int) -> int:\n        y: int\n        return x\n",
            ),
        ),
    ),
    "words of a module that a function imports": Edit(
        HELPER,
        "import helper\n# words\n\n" + HELPER,
        (
            (
                "helper.py",
                "def scale(x): return x\nclass A:\n    k = 1\n",
                "'Words.'\n\ndef scale(x):\n    'Words.'\n    return x\nclass A:\n    'Words.'\n    k = 1\n",
            ),
        ),
    ),
    "another function of a module": Edit(
        "import helper\nds = bushel.MapDataset.range(8).map(lambda x: helper.scale(x))",
        "import helper\nds = bushel.MapDataset.range(8).map(lambda x: helper.scale(x))",
        (
            (
                "helper.py",
                "def scale(x): return x\ndef other(x): return 1",
                "def scale(x): return x\ndef other(x): return 2",
            ),
        ),
    ),
}


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    edits = {name: Edit(substitute(text, "2"), substitute(text, "3")) for name, text in CHANGED.items()}
    return run_both(tmp_path_factory.mktemp("changed"), edits | MODULES)


@pytest.fixture(scope="module")
def same(tmp_path_factory):
    edits = {name: Edit(*(substitute(text, "2") for text in texts)) for name, texts in SAME.items()}
    return run_both(tmp_path_factory.mktemp("same"), edits | MODULES_SAME)


@pytest.mark.parametrize("name", [*CHANGED, *MODULES])
def test_an_edit_that_changes_what_a_function_does_is_refused(changed, name):
    found = changed[name]
    assert "error" not in found, found["error"]
    kinds = {"state", "cache", "save", "column"} & set(found)
    if name in OF_EACH_PART:
        kinds.remove("column")
    assert {kind: found[kind] for kind in kinds} == dict.fromkeys(kinds, "refused")


@pytest.mark.parametrize("name", [*SAME, *MODULES_SAME])
def test_an_edit_that_changes_nothing_is_accepted(same, name):
    found = same[name]
    assert "error" not in found, found["error"]
    assert set(found.values()) == {"accepted"}, found
