"""The base of scenarios that write: protocols that record flow control, and the ways of writing."""

SMALL = [1, 10, 1000, 5000]


class Calls:
    """Records the callbacks that every protocol has."""

    def __init__(self, scenario, name):
        self.scenario, self.name = scenario, name

    def connection_made(self, transport):
        self.scenario.called("connection_made", self.name)

    def connection_lost(self, error):
        self.scenario.called("connection_lost", self.name, self.scenario.describe(error))

    def pause_writing(self):
        self.scenario.called("pause_writing")

    def resume_writing(self):
        self.scenario.called("resume_writing")


class Writing:
    """Mixin for scenarios whose transport writes."""

    def write(self, size, kind):
        self.transport.write(kind(bytes(size)))

    def writelines(self, sizes):
        self.transport.writelines([bytes(size) for size in sizes])

    def choose_writelines(self):
        return ([self.random.choice(SMALL) for _ in range(self.random.randrange(4))],)

    def write_wrongly(self, data):
        self.transport.write(data)

    def choose_write_wrongly(self):
        return (self.random.choice(["text", None, 3, [1]]),)

    def write_eof(self):
        self.transport.write_eof()

    def can_write_eof(self):
        return self.transport.can_write_eof()
