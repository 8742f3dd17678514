"""A slow and obvious implementation of one visit, in plain Python and float64: the oracle for the backend.

It shares no code with the package: states are tuples, random numbers are SplitMix64 on Python integers, and every state
goes through the whole decoder by itself.
"""

import math

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class PointStream:
    """The random numbers of one data point."""

    def __init__(self, seed, index):
        self.state = mix((index * GOLDEN + seed) & MASK)

    def bits(self):
        self.state = (self.state + GOLDEN) & MASK
        return mix(self.state)

    def uniform(self):
        return (self.bits() >> 40) / 2**24


ACTIVATIONS = {
    "relu": lambda a: max(a, 0.0),
    "leaky_relu": lambda a: a if a > 0 else 0.01 * a,
    "elu": lambda a: a if a > 0 else math.expm1(a),
    "gelu": lambda a: a * 0.5 * (1 + math.erf(a / math.sqrt(2))),
    "silu": lambda a: a / (1 + math.exp(-a)),
    "softplus": lambda a: a if a > 20 else math.log1p(math.exp(a)),
    "tanh": math.tanh,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
}


class Theta:
    """pi, sigma2 and the decoder of `tvae.model.vae.gaussian_model`, as numpy arrays."""

    def __init__(self, model):
        self.pi = model.pi.double().numpy()
        self.sigma2 = float(model.likelihood.sigma2)
        self.weights = [w.detach().double().numpy() for w in model.decoder.weights]
        self.biases = [b.detach().double().numpy() for b in model.decoder.biases]
        self.activation = np.vectorize(ACTIVATIONS[model.decoder.activation], otypes=[float])

    def mu(self, z):
        value = np.array(z, dtype=float)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            value = (self.activation(value) if i else value) @ weight + bias
        return value

    def log_joint(self, x, z, observed=None):
        total = 0.0
        for z_h, pi_h in zip(z, self.pi, strict=True):
            total += math.log(pi_h if z_h else 1 - pi_h)
        for d, mu_d in enumerate(self.mu(z)):
            if observed is None or observed[d]:
                total -= 0.5 * math.log(2 * math.pi * self.sigma2) + (x[d] - mu_d) ** 2 / (2 * self.sigma2)
        return total


def choose_parents(fitness, n_parents, selection, stream):
    if selection == "best":
        return sorted(range(len(fitness)), key=lambda i: -fitness[i])[:n_parents]
    if selection == "uniform":
        return [((stream.bits() >> 32) * len(fitness)) >> 32 for _ in range(n_parents)]
    if selection == "posterior":
        share = [math.exp(f - max(fitness)) for f in fitness]
    else:
        share = [f - min(fitness) for f in fitness]
    parents = []
    for _ in range(n_parents):
        left = stream.uniform() * sum(share)
        place = 0
        while place < len(share) - 1 and left >= share[place]:
            left -= share[place]
            place += 1
        parents.append(place)
    return parents


def choose_distinct(high, count, stream):
    chosen = []
    for j in range(count):
        top = high - count + j
        draw = ((stream.bits() >> 32) * (top + 1)) >> 32
        chosen.append(top if draw in chosen else draw)
    return chosen


def breed(pool, fitness, ea, stream):
    """The children of one generation, mutation `uniform`, no crossover."""
    parents = choose_parents(fitness, ea.n_parents, ea.selection, stream)
    children = []
    for parent in parents:
        if ea.n_flips == 1:
            flips = [[latent] for latent in choose_distinct(len(pool[0]), ea.n_children, stream)]
        else:
            flips = [choose_distinct(len(pool[0]), ea.n_flips, stream) for _ in range(ea.n_children)]
        for latents in flips:
            children.append(tuple(1 - bit if h in latents else bit for h, bit in enumerate(pool[parent])))
    return children


def e_step(theta, ea, x, states, stream, observed=None):
    """The S fittest of the old states and all children, as {state: log_joint}."""
    pool = list(states)
    known = {z: theta.log_joint(x, z, observed) for z in pool}
    for _ in range(ea.n_generations):
        pool = breed(pool, [known[z] for z in pool], ea, stream)
        known |= {z: theta.log_joint(x, z, observed) for z in pool}
    best = sorted(known, key=lambda z: -known[z])[: len(states)]
    return {z: known[z] for z in best}


def elbo(log_joints):
    top = max(log_joints)
    return top + math.log(sum(math.exp(v - top) for v in log_joints))
