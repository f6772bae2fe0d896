"""A module of a program, which workers import: it says `import grain` too."""

import grain


class Centre(grain.transforms.Map):
    """Around its mean."""

    def map(self, element):
        return element - element.mean()
