"""All that a person, a log or a file can get to see of an error."""

import traceback


def all_text_of(error):
    """The text of an error and of all that it is chained to: messages, arguments, notes, attributes, tracebacks."""
    texts, todo, seen = ["".join(traceback.format_exception(error))], [error], set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
        texts += [str(one), repr(one), repr(one.args), repr(getattr(one, "__notes__", ())), str(vars(one))]
        texts += [str(getattr(one, name, "")) for name in ("filename", "strerror", "filename2")]
    return "\n".join(texts)


def notes_of(error):
    """The notes that were added to an error, as one text."""
    return "\n".join(getattr(error, "__notes__", ()))
