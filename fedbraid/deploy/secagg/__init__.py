"""Secure aggregation: the server learns the sum of clients' vectors, and of a single one no more than the sum tells.

After Bonawitz et al. (2017). Every two clients agree on a seed (X25519, HKDF) and mask their vectors with its stream of
numbers, one adding what the other takes away, so that these masks cancel in the sum; and every client adds a mask of
its own. The secret of its own mask and the key of its pair masks it shares out among the cohort (Shamir), so that any
`threshold` clients can help the server to take off what remains when others are lost:

    client.advert()               public keys            ->  server.roster(...)     everybody's, the same for all
    client.share(roster)          sealed shares          ->  server.deliver(...)    for each client those meant for it
    client.mask(shares, numbers)  the masked vector      ->  server.survivors(...)  whose vectors came
    client.reveal(survivors)      shares of secrets      ->  server.total(...)      the sum over the survivors, exact

Of a survivor the shares of its own secret are revealed, of a lost client those of its pair key, never both: a vector
that comes after its sender was given up still wears its own mask. Clients may be lost at any step.

The server is taken to follow the protocol and to look at all that it sees, also together with fewer than `threshold`
clients. From a server that lies about who is there more is kept only this: `threshold` is more than half of the cohort
and a client reveals one secret of another, so nobody's secrets are both opened; but it could learn sums over fewer
clients than it says. That it does not put itself between clients, only signed adverts ensure.

A sum is over at least three vectors: of a sum of two, each of the two clients would know the other's. The sum tells
what a sum tells, and two sums of the same vectors over different clients tell their difference: a vector is to be
summed once. Clients that send wrong numbers are not found out.
"""
