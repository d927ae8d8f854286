"""Settings that have no effect are refused, unless they are varied into having one or are the defaults."""

import pytest

from fedbraid.config.inert import refuse_inert
from fedbraid.config.schema import from_dict
from fedbraid.errors import UserError
from fedbraid.strands import parser as methods
from fedbraid.studies.run_digest import written_out


def asked(*several):
    """Runs that are asked for together, each by its method and its settings."""
    configs = [from_dict({"method": method, **settings}) for method, settings in several]
    return [(config, methods.parse(config.method, config.strands)) for config in configs]


UNHEARD = [
    ("fedavg", {"schedule": {"gamma": 0.5}}, "schedule.gamma=0.5 is for schedule.shape=step; set that too, or leave"),
    (
        "fedavg",
        {"schedule": {"shape": "cosine", "milestones": [5]}},
        "schedule.milestones=(5,) is for schedule.shape=st",
    ),
    ("fedavg", {"schedule": {"shape": "step", "milestones": [5], "floor": 0.1}}, "is for schedule.shape=cosine"),
    ("fedavg", {"sampling": {"rate": 0.3}}, "sampling.rate=0.3 is for sampling.scheme=bernoulli"),
    ("fedavg", {"sampling": {"scheme": "by_size", "clients": 5, "rate": 0.3}}, "sampling.rate=0.3 is for"),
    (
        "fedavg",
        {"sampling": {"scheme": "bernoulli", "clients": 5}},
        "sampling.clients=5 is for sampling.scheme=fixed or",
    ),
    ("fedavg", {"sampling": {"late_from": 3}}, "sampling.late_from=3 is for sampling.late; set that too"),
    ("nova(mu=0.2)", {}, "nova's mu=0.2 is for prox, and there is none; leave it out"),
    ("asd+ntd", {"strands": {"ntd": {"beta": 5.0}}}, "ntd(beta=5.0) has no effect here, where another strand does"),
    ("fedavg", {"local": {"batch": 0, "drop_last": True}}, "local.drop_last=True is for local.batch; set that too"),
    ("fedavg", {"analysis": {"every": 5}}, "analysis.every=5 is for analyses; set that too, or leave it out"),
    ("fedavg", {"optimizer": {"nesterov": True}}, "optimizer.nesterov=True is for optimizer.momentum"),
    ("fedavg", {"augment": {"flip": 0.5, "crop_share": 0.5}}, "augment.crop_share=0.5 is for augment.crop"),
    ("fedavg", {"augment": {"flip": 0.5, "padding": "mean"}}, "=mean is for augment.crop or augment.rotation"),
    ("sam(eta=0.3)", {}, "sam's eta=0.3 is for sam's adaptive"),
    ("sam", {"strands": {"sam": {"eta": 0.3}}}, "sam's eta=0.3 is for sam's adaptive"),
    ("rfedavg(clip=2)", {}, "rfedavg's clip=2.0 is for rfedavg's noise"),
    ("fedadagrad(beta2=0.9)", {}, "opt's beta2=0.9 is for opt's kind=adam or opt's kind=yogi"),
    ("fedacd(score=false, kl=sum)", {}, "fedacd's kl=sum is for fedacd's score"),
    ("asd(weights=uniform, entropy=temperature)", {}, "asd's entropy=temperature is for asd's weights=adaptive"),
]


@pytest.mark.parametrize(("method", "settings", "sentence"), UNHEARD)
def test_what_has_no_effect_is_refused(method, settings, sentence):
    with pytest.raises(UserError) as caught:
        refuse_inert(asked((method, settings)))
    assert sentence in str(caught.value)


def test_what_is_heard_or_spelt_out_as_it_is_anyway_is_not_refused():
    spelt_out = {"optimizer": {"nesterov": False, "momentum": 0.0}, "augment": {"crop_share": 1.0, "padding": "zero"}}
    refuse_inert(asked(("sam(eta=0.2)+rfedavg(clip=1.0)", spelt_out)))
    heard = {"optimizer": {"nesterov": True, "momentum": 0.9}, "augment": {"rotation": 5.0, "padding": "mean"}}
    refuse_inert(asked(("fedasam(eta=0.3)+rfedavg(noise=1.0, clip=2.0)", heard)))
    refuse_inert(asked(("fedavg", {"local": {"batch": 8, "drop_last": True, "epochs": 2}})))
    refuse_inert(asked(("fedavg", {"local": {"steps": 3, "epochs": 1}})))
    refuse_inert(asked(("fedavg", {"analyses": ["drift"], "analysis": {"every": 5}})))
    for method in ("fedavg", "fedasam", "fedadagrad"):
        (run,) = asked((method, {}))
        refuse_inert(asked((method, {"strands": written_out(run[0]).strands})))


def test_of_varied_runs_one_must_hear_a_setting():
    shapes, varied = ("constant", "cosine", "step"), {"varied": ["schedule.shape"]}
    constant, cosine, step = ({"schedule": {"shape": shape, "milestones": [2]}} | varied for shape in shapes)
    refuse_inert(asked(("fedavg", constant), ("fedavg", step)))
    refuse_inert(asked(("fedavg", constant)))  # as it was recorded
    with pytest.raises(UserError, match=r"schedule.milestones=\(2,\) is for schedule.shape=step"):
        refuse_inert(asked(("fedavg", constant), ("fedavg", cosine)))
    looks = [{"analysis": {"every": 5}, "analyses": names, "varied": ["analyses"]} for names in ([], ["drift"])]
    refuse_inert(asked(*(("fedavg", look) for look in looks)))
    sams = (
        {"strands": {"sam": {"eta": 0.3, "adaptive": a}}, "varied": ["strands.sam.adaptive"]} for a in (True, False)
    )
    refuse_inert(asked(*(("sam", settings) for settings in sams)))
    with pytest.raises(UserError, match=r"sam's eta=0.3 is for"):
        refuse_inert(asked(("sam(eta=0.3)", {}), ("fedasam(eta=0.3)", {})))


def works(*local, varied=("local.epochs",)):
    return asked(*(("fedavg", {"local": work, "varied": varied}) for work in local))


def test_what_gives_way_to_another_setting_is_refused_where_it_is_varied():
    one, two = {"steps": 3}, {"steps": 3, "epochs": 2}
    refuse_inert(works(two))  # as it was recorded
    refuse_inert(works(two, {"steps": 4, "epochs": 2}, varied=["local.steps"]))  # a file's epochs, say
    both = "local.epochs", "local.steps"
    refuse_inert(works({"epochs": 2}, two, varied=both))
    refuse_inert(works({"epochs": 2}, two, varied=["local"]))
    sentence = r"^local.epochs=2 has no effect beside local.steps=3, which takes its place; leave out one$"
    for runs in (works(one, two), works(one, two, varied=both), works(one, two, varied=["local"])):
        with pytest.raises(UserError, match=sentence):
            refuse_inert(runs)


def test_a_recorded_run_hears_for_those_beside_it():
    shapes = "step", "constant", "cosine"
    runs = asked(
        *(("fedavg", {"schedule": {"shape": s, "milestones": [2]}, "varied": ["schedule.shape"]}) for s in shapes)
    )
    refuse_inert(runs[1:], runs[:1])
    unheard = works({"steps": 3}, {"steps": 3, "epochs": 2})
    refuse_inert(unheard[:1], unheard[1:])  # and is not refused itself
    with pytest.raises(UserError, match=r"local.epochs=2 has no effect"):
        refuse_inert(unheard[1:], unheard[:1])
