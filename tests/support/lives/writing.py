"""What lives that write have in common: protocols that are told to pause, and the ways of writing."""

SMALL = [1, 10, 1000, 5000]


class Calls:
    """What every protocol here writes down."""

    def __init__(self, life, name):
        self.life, self.name = life, name

    def connection_made(self, transport):
        self.life.called("connection_made", self.name)

    def connection_lost(self, error):
        self.life.called("connection_lost", self.name, self.life.words(error))

    def pause_writing(self):
        self.life.called("pause_writing")

    def resume_writing(self):
        self.life.called("resume_writing")


class Writing:
    """For a life whose transport writes."""

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
