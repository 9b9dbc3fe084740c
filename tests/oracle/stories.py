"""A seeded generator of short, simple English stories: the training text of the demo model.

A line is a template: `[a|b|c]` picks one, the earlier the likelier (so that a model trained on it has clear
preferences, not ties), `[?x]` keeps x half of the time, `{slot}` is looked up in the cast of the story.
"""

import argparse
import random
import re

GIRLS = "Mia Lily Anna Rosa Nora Ella Zoe Clara".split()
BOYS = "Tom Ben Max Leo Sam Finn Otto Jack".split()
ANIMALS = "fox rabbit mouse bear owl duck hedgehog frog squirrel cat turtle goat".split()
TRAITS = "little brave kind shy curious clever small young quiet cheerful stubborn sleepy gentle".split()
PLACES = [
    "in a small village", "near a green forest", "by a wide river", "in a house on a hill", "at the edge of a meadow",
    "on a quiet farm", "by the sea", "in an old mill", "in a warm burrow", "under a big oak tree", "in a busy town",
    "beside a blue lake", "in a cottage with a red roof", "at the foot of a mountain",
]
SPOTS = [
    "the forest", "the river", "the garden", "the meadow", "the old bridge", "the hill", "the barn", "the pond",
    "the market", "the beach", "the well", "the big oak tree", "the stone wall", "the hollow log", "the dark cave",
]
THINGS = "ball kite hat drum lantern basket boat bell book blanket scarf whistle key cup box button shell flute".split()
COLOURS = "red blue green yellow white golden brown silver purple orange".split()
FOODS = [
    "bread", "apples", "soup", "honey cakes", "berries", "cheese", "pears", "nuts", "pancakes", "carrots", "plum jam", "cookies",
]
MAKES = [
    "a boat", "a kite", "a tree house", "a snow castle", "a little bridge", "a bird house", "a cart with four wheels", "a swing",
    "a raft", "a scarecrow",
]
PLANTS = "sunflower bean rose pumpkin tulip cherry tomato daisy".split()
FEARS = ["the dark", "thunder", "deep water", "the wind at night", "loud noises", "high places", "the big black dog"]
RELATIVES = ["mother", "father", "grandmother", "grandfather", "aunt", "uncle", "big sister", "big brother"]
WEATHER = [
    "The sun was [shining|warm|high in the sky].", "It was a [cold|windy|grey] [morning|day].", "Soft rain fell on the [roof|leaves|grass].",
    "The [sky was blue|air smelled of grass|birds were singing].", "Snow lay on the [ground|trees|fields].",
    "White clouds [floated over|drifted above] {spot}.", "The wind [played with|shook] the leaves.",
]

OPENINGS = [
    "Once upon a time, there was {a_hero} [named|called] {name}. {They} lived {place}.",
    "Once there was {a_hero}. {Their} name was {name}, and {they} lived {place}.",
    "{Place} lived {a_hero}. [Everyone|All the animals|The neighbours] called {them} {name}.",
    "{name} was {a_hero} who lived {place}[| with {their} {relative}].",
    "One [day|morning|afternoon], {a_hero} named {name} [woke up early|looked out of the window|was bored].",
    "Long ago, {place}, there lived {a_hero} whose name was {name}.",
    "[There was once|A long time ago there was] {a_hero} named {name} who [loved|liked] [to sing|to read|to run|to swim|to ask questions].",
]
HABITS = [
    "{name} [loved|liked] {food} [more than anything|very much].", "Every [morning|evening|day], {name} [walked|ran|went] to {spot}.",
    "{They} had a {colour} {thing} that {they} [took everywhere|kept under {their} bed|loved very much].",
    "{name} and {their} {relative} often [sang songs|told stories|baked {food}|looked at the stars] together.",
    "{name} was {trait} and always [said please|asked questions|wanted to help|laughed a lot].",
]
FEEL_BAD = [
    "{name} felt [sad|worried|very small|lonely|tired].", "{name} [began to cry|sat down and sighed|did not know what to do].",
    "\"[Oh no|Oh dear]!\" [said|cried] {name}.", "A tear ran down {their} [cheek|nose].",
]
FEEL_GOOD = [
    "{name} [smiled|laughed|jumped for joy|clapped and danced].", "{name} felt [happy|proud|warm inside|brave] [again|at last|now].",
    "\"[Hooray|Look at that|We did it]!\" [shouted|cried|said] {name}.", "{name} gave {friend} a big hug.",
]
ENDINGS = [
    "From that day on, {name} and {friend} were [best|good] friends.",
    "That night, {name} [slept well|fell asleep with a smile|dreamed of {spot}].",
    "And {name} [never forgot|always remembered] [that day|what {friend} had said|the {colour} {thing}].",
    "They [sat together|ate {food}|sang a song] until the [sun went down|stars came out|moon was high].",
    "{name} [learned|now knew] that {moral}.", "\"[What a day|This was the best day ever]!\" said {name}. And it [was|really was].",
    "They all lived happily [ever after|together {place}].",
]
MORALS = [
    "[friends help each other|it is good to have a friend]", "[it is brave to say sorry|the truth is the best way]",
    "[sharing makes everyone happy|there is always enough for two]", "[even the smallest can help|being small is no bad thing]",
    "[it is good to try again|you must not give up]", "[kind words are like sunshine|a kind word costs nothing]",
    "[slow and careful is also good|there is no need to hurry]", "[asking for help is not hard|it is all right to be afraid]",
]
MEET = [
    "[Then|Just then|Soon] {friend_a} [came by|came along the path|looked out from behind a [tree|bush|wall]].",
    "On the way to {spot}, {they} met {friend_a}.", "[Near|At|Behind] {spot}, {name} met {friend_a}.",
]
ASK = [
    "\"[What is wrong|Why are you so sad|Can I help you], {name}?\" asked {friend}.",
    "\"[Hello|Good morning|Good day], {name},\" said {friend}. \"[You look sad.|What are you doing?|Where are you going?]\"",
    "{friend} [looked at|sat down beside|smiled at] {name} and asked what was wrong.",
]
ANSWER = [
    "\"{problem},\" said {name}.", "\"{problem},\" {name} [answered|told {friend}|said softly].",
    "{name} told {friend} [everything|the whole story|what had happened].",
]
OFFER = [
    "\"[Do not worry|Do not be sad|Come with me],\" said {friend}. \"[I will help you|We can do it together|I have an idea].\"",
    "\"I [know|think I know] what to do,\" said {friend}.", "{friend} [thought for a while|scratched {f_their} head|nodded slowly] and had an idea.",
    "\"[Two are better than one|Together it is easy],\" [said|laughed] {friend}.",
]

# Each plot: what is said to the friend, then its scenes; a scene is a list of alternatives.
PLOTS = {
    "lost": ("I have lost my {colour} {thing}", [
        ["One day, {name} could not find {their} {colour} {thing}.", "But one [morning|day], the {colour} {thing} was gone.",
         "{name} took {their} {colour} {thing} to {spot}, but on the way home it was [gone|not there]."],
        ["{They} looked [under the bed|behind the door|in the kitchen] and [in the garden|behind the house|on the roof], but [it was not there|found nothing].",
         "{They} searched [all day|everywhere|high and low], but the {thing} was not to be found."],
        "BAD", "MEET", "ASK", "ANSWER", "OFFER",
        ["They went to {spot} and looked [under every leaf|behind every stone|into every corner].",
         "{friend} [sniffed the ground|looked at the footprints|climbed up high] and pointed to {spot}.",
         "They walked [slowly|hand in hand|side by side] to {spot}[, looking left and right|]."],
        ["There it was! The {thing} [was hanging from a branch|lay in the grass|was stuck between two stones].",
         "And there, [in the mud|under a bush|next to a mushroom], was the {colour} {thing}."],
        "GOOD", ["\"Thank you, {animal},\" said {name}. \"[You are a good friend|I could not have done it alone].\""]]),
    "friend": ("I have nobody to play with", [
        ["But {name} had [no friends|nobody to play with|no one to talk to].", "{name} [wanted|wished for] a friend[ more than anything|]."],
        "BAD", ["One day, {they} went to {spot} [to play alone|with {their} {thing}|to look at the water]."],
        "MEET", ["{friend} was [alone too|shy and said nothing|holding a {colour} {thing}]."],
        ["\"[Do you want to play|May I play with you|What is your name]?\" asked {name}.", "\"Hello,\" said {name}. \"[I like your {thing}|Do you live here|Shall we play]?\""],
        ["\"Yes[, please|]!\" said {friend}.", "{friend} [nodded|smiled|looked up]. \"I would like that,\" {f_they} said."],
        ["They played [hide and seek|with the {thing}|by the water] [all day|until evening|for hours].",
         "They [ran around|climbed on|danced around] {spot} and [laughed|sang silly songs|shared some {food}]."], "GOOD"]),
    "stuck": ("{Friend} is stuck", [
        ["One day, {name} heard a [small voice|strange sound|cry] near {spot}.", "On the way to {spot}, {name} [heard somebody cry|heard a sound|stopped to listen]."],
        ["\"[Help|Help me|Please help]!\" [cried|called] the voice."],
        ["It was {friend_a}. {F_they} was stuck in [a hole|the mud|a bush full of thorns|an old net].",
         "There sat {friend_a}, [stuck in the mud|caught in an old net|high up in a tree and afraid to come down]."],
        ["{name} [pulled|pushed] and [pulled|pushed], but {friend} [did not move|was too heavy|could not get out].", "First {name} tried to pull, but it [did not work|was too hard]."],
        "BAD", ["Then {name} [had an idea|looked around|ran home fast]. {They} [found|fetched] a long [rope|stick|branch].", "Then {their} {relative} came [with a rope|to help|with a ladder]."],
        ["\"[Hold on tight|One, two, three],\" said {name}, and [pulled with all {their} might|{friend} was free].", "Slowly, [very slowly|bit by bit], {friend} came [out|free|down]."],
        ["\"Thank you for [saving me|your help],\" said {friend}."], "GOOD"]),
    "fear": ("I am afraid of {fear}", [
        ["There was one thing {name} did not like: {fear}.", "But {name} was [afraid|very afraid] of {fear}."],
        ["One [night|evening], {they} had to go to {spot} [alone|all alone|to fetch water].", "One evening, {their} {relative} asked {them} to [bring {food} from|go to] {spot}."],
        "BAD", "MEET", "ASK", "ANSWER",
        ["\"[I was afraid too|Everybody is afraid of something],\" said {friend}. \"[Take my hand|Count to three|Sing a song], then it is not so bad.\""],
        ["{name} took a deep breath. [One step, two steps, three steps|Step by step {they} walked on].", "{name} [sang a little song|counted to three|held the {thing} tight] and [went on|walked to {spot}]."],
        ["And [nothing bad happened|it was not so bad|soon it was over].", "Soon {name} [saw the stars|heard a small bird|was not afraid any more]."], "GOOD"]),
    "build": ("I want to build {make}, but I do not know how", [
        ["One day, {name} wanted to build {make}.", "{name} had a [big|wonderful] plan: {they} would [build|make] {make}."],
        ["{They} [took|found|carried] some [wood|old boards|sticks] and [a rope|some nails|a hammer], and began to work.", "All morning {they} [worked|sawed and hammered] near {spot}."],
        ["But [it fell down|it broke in two|a wheel came off|the wind blew it over].", "Then, [crack|bang|bump]! It [fell down|broke]."],
        "BAD", "MEET", "ASK", "ANSWER", "OFFER",
        ["{friend} held [the wood|the rope|one end] and {name} [tied a knot|hit the nail|measured twice].", "They [started again|worked side by side|worked until evening], and this time they were careful."],
        ["[At last|In the evening|Two days later] it was [done|ready|finished]. They painted it {colour}.", "It was [big|strong|a bit crooked], and it was {colour}."], "GOOD"]),
    "share": ("I am so hungry", [
        ["One day, {name} had a basket full of {food}.", "{name} and {their} {relative} [baked|made|carried home] {food}."],
        ["{They} wanted to eat [it all|everything] alone.", "It smelled [so good|wonderful], and {name} [sat down under a tree|could not wait]."],
        ["Then {friend_a} came [by|along]. {F_they} was [hungry|thin|cold and wet].", "{friend_a_up} stood [by the gate|under the tree] and looked at the {food}."],
        ["\"[May I have some|Is there some for me], please?\" asked {friend}.", "{friend} said nothing, but {f_their} stomach [rumbled|growled]."],
        ["{name} [thought about it|looked at the basket|was quiet for a moment]. Then {they} [smiled|nodded].", "At first {name} wanted to say no. But then {they} saw {friend}'s [sad eyes|cold feet]."],
        ["\"[Here, take half|Sit down and eat with me|There is enough for two],\" said {name}."],
        ["They ate [together|slowly|every crumb], and the {food} tasted [even better|twice as good].", "They [shared the {food}|ate] and told [jokes|stories]."], "GOOD"]),
    "storm": ("The storm has taken our roof", [
        ["One day, a [big|terrible|great] storm came.", "In the evening, dark clouds came over {spot}."],
        ["The wind [howled|blew and blew] and the rain [fell on the roof|came down in buckets].", "[Thunder rolled|Lightning flashed] [over the hill|above {spot}]."],
        ["{name} hid [under the table|in bed|in a corner] with {their} {thing}.", "{name} looked out and saw {friend_a} in the rain."],
        "BAD", ["Somebody knocked [at the door|on the window]. It was {friend}, [wet and cold|dripping with rain].", "\"[Let me in|May I come in], please,\" called {friend}."],
        ["{name} opened the door and gave {friend} [a warm blanket|a cup of tea|some {food}].", "\"Come in, come in,\" said {name}. \"[Sit by the fire|You must be cold].\""],
        ["They sat by the fire and [told stories|listened to the rain|ate {food}] until the storm was [over|gone].", "In the morning, the [sun came out|sky was clear] and there was a rainbow over {spot}."], "GOOD"]),
    "race": ("I never win", [
        ["One day, there was a [race|big race] to {spot}.", "The animals wanted to know who could [run|swim|climb] to {spot} first."],
        ["{name} wanted to [win|be first] [very much|more than anything].", "\"I will win,\" said {friend_a}. \"{name} is too [slow|small].\""],
        ["One, two, three, go! [Everybody ran|Off they went|{friend} was fast as the wind].", "{friend} [ran ahead|jumped ahead], and {name} was [last|far behind]."],
        ["But {friend} [fell over a root|stopped to sleep|lost the way|hurt {f_their} foot] near {spot}.", "Then {name} saw {friend} [lying on the ground|sitting by the path]."],
        ["{name} could [win now|run past]. But {they} [stopped|turned around|stayed] and helped {friend}.", "\"Are you hurt?\" asked {name}, and [helped {friend} up|gave {friend} some water]."],
        ["They [walked|crossed the line] together, [slowly|arm in arm], and everybody [clapped|cheered].", "Nobody [won|was first] that day, and nobody [was sad|minded]."], "GOOD"]),
    "treasure": ("This map shows a treasure", [
        ["One day, {name} found an old [map|letter|box with a map] [in the attic|under a stone|in a bottle].", "{name}'s {relative} gave {them} an old map[ with a {colour} cross on it|]."],
        ["The map showed [the way to|a path to] {spot}.", "\"A treasure!\" [thought|said] {name}."], "MEET", "ASK", "ANSWER", "OFFER",
        ["They walked [over the hill|through the forest|along the river] [all day|for a long time] and came to {spot}.", "[First|Left] around {spot}, [then|right] past {spot2}: the path was long."],
        ["There they dug [a deep hole|and dug|with their hands]. [Clonk|Bump]! It was [a chest|an old box].", "Under a [flat stone|root] they found a {colour} box."],
        ["In it there was no gold, but [a {thing}|a jar of {food}|a letter: share what you find].", "It was full of [shells|buttons|old coins|{food}]."], "GOOD"]),
    "gift": ("My {relative} is ill", [
        ["One day, {name}'s {relative} was [ill|sick in bed|not feeling well].", "{name}'s {relative} [lay in bed and coughed|had a cold]."],
        ["{name} wanted to bring [{food}|flowers|a {colour} {thing}].", "\"[What can I do|What can I give]?\" thought {name}."], "BAD", "MEET", "ASK", "ANSWER", "OFFER",
        ["They [picked flowers|baked {food}|gathered {food}|painted a picture] near {spot}.", "{friend} brought [honey|eggs|flowers], and {name} brought [flour|milk|paper]."],
        ["Then they [knocked at the door|went to the house|tiptoed in] and said, \"[This is for you|Surprise]!\""],
        ["{name}'s {relative} [smiled|laughed with joy|felt better at once]. \"[Thank you, my dear|How lovely],\" {relative_they} said."], "GOOD"]),
    "plant": ("My {plant} does not grow", [
        ["One spring day, {name} put a {plant} seed into the ground.", "{name}'s {relative} gave {them} a tiny {plant} seed."],
        ["Every day {they} gave it [water|water and sang to it|water from the well].", "{They} [waited|watched] and [waited|watched], but nothing [happened|grew]."],
        "BAD", "MEET", "ASK", "ANSWER", ["\"[It needs sun|It needs time|You must wait],\" said {friend}. \"[Good things take time|Be patient].\""],
        ["[Days|Two weeks] went by. [Rain fell and the sun shone|The nights grew warm].", "So {name} waited. [One day, two days, a week|The moon became round and thin again]."],
        ["Then, one morning, there was a [tiny green leaf|small green tip].", "And one morning a {colour} flower [opened|looked at the sun]."],
        ["It grew [taller than {name}|up to the roof|bigger every day]."], "GOOD"]),
    "broken": ("I have broken the {thing}", [
        ["One day, {name} played with {their} {relative}'s {thing}[, although it was not allowed|].", "{name} [ran|danced] through the house and bumped into the table."],
        ["[Crash|Bang]! The {colour} {thing} fell down and broke.", "The {thing} fell [to the floor|down the stairs] and [broke in two|broke into pieces]."],
        "BAD", ["{They} hid the pieces [under the bed|in a box|behind {spot}].", "\"[Nobody will know|What shall I do],\" thought {name}."],
        "MEET", "ASK", "ANSWER", ["\"[Tell the truth|You must say it],\" said {friend}. \"[It will feel better|I will come with you].\""],
        ["So {name} went to {their} {relative} and said, \"I am sorry. I broke the {thing}.\""],
        ["\"[Thank you for telling me|I am glad you told me],\" said {their} {relative}. \"[We can glue it|It was only a {thing}].\""], "GOOD"]),
    "stars": ("I cannot sleep", [
        ["One night, {name} could not sleep.", "It was late, but {name} was [not tired|wide awake]."],
        ["The moon [looked through the window|was round and bright], and [an owl called|the house was quiet].", "{They} [turned left and right|counted sheep|listened to the wind]."],
        ["So {they} [went outside|climbed up to the roof|walked to {spot}] in {their} {colour} [coat|scarf|hat]."], "MEET", "ASK", "ANSWER",
        ["\"Look up,\" said {friend}. \"[Every star has a name|Let us count the stars].\"", "They [lay in the grass|sat down near {spot}] and looked at the [sky|stars]."],
        ["\"That one looks like a {thing},\" said {name}. \"And that one looks like a {animal2}!\"", "One star, two stars, three stars. A star [fell|shot across the sky], and {name} made a wish."],
        ["Soon {their} eyes [closed|grew heavy]. [{friend} covered {them} with a blanket|The night was warm]."]]),
    "market": ("I want to buy a {thing}", [
        ["One day, {name} went to the market with [a basket of {food}|three coins|{their} {relative}].", "{name}'s {relative} sent {them} to the market to buy {food}."],
        ["There were [apples and pears|fish and bread|hats and shoes], and everybody [shouted|talked at once].", "At the market {they} saw a {colour} {thing}."],
        ["\"How much is it?\" asked {name}. \"[Three coins|Ten coins|A song],\" said [the old woman|the man|the seller]."], "BAD", "MEET", "ASK", "ANSWER", "OFFER",
        ["{friend} gave {them} [a coin|two coins|an apple], and {name} [sang a song|told a joke|carried the boxes].", "They [sold|swapped] the {food} for the {colour} {thing}."], "GOOD"]),
}
SCENES = {"BAD": FEEL_BAD, "GOOD": FEEL_GOOD, "MEET": MEET, "ASK": ASK, "ANSWER": ANSWER, "OFFER": OFFER}
PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "him", "his")}
INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def pick(rng, options):
    """One of the options, the earlier the likelier."""
    return rng.choices(options, weights=[1.0 / (i + 1.5) for i in range(len(options))])[0]


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def expand(rng, line, cast):
    def choose(match):
        body = match.group(1)
        return (body[1:] if rng.random() < 0.5 else "") if body.startswith("?") else pick(rng, body.split("|"))

    while "{" in line:
        line = re.sub(r"\{(\w+)\}", lambda slot: cast[slot.group(1)], line)
    while INNERMOST.search(line):
        line = INNERMOST.sub(choose, line)
    line = line[0].upper() + line[1:]
    line = re.sub(r'([.!?] "?)([a-z])', lambda start: start.group(1) + start.group(2).upper(), line)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", line)


def make_cast(rng):
    """Who, where and what: fixed for one story, so that it stays about the same things."""
    person = rng.random() < 0.55
    pronoun = pick(rng, ["she", "he"])
    # Names and animals are all alike likely: a model must then read who the story is about, not guess.
    name = rng.choice(GIRLS if pronoun == "she" else BOYS)
    trait = pick(rng, rng.sample(TRAITS, 6))
    kind = ("girl" if pronoun == "she" else "boy") if person else rng.choice(ANIMALS)
    animal, animal2 = rng.sample(ANIMALS, 2)
    if animal == kind:
        animal, animal2 = animal2, animal
    f_pronoun = pick(rng, ["he", "she"])
    f_trait = pick(rng, rng.sample([t for t in TRAITS if t != trait], 5))
    spot, spot2 = rng.sample(SPOTS, 2)
    place = pick(rng, rng.sample(PLACES, 7))
    relative = pick(rng, RELATIVES)
    they, them, their = PRONOUNS[pronoun]
    f_they, _, f_their = PRONOUNS[f_pronoun]
    friend, friend_a = f"the {animal}", article(f"{f_trait} {animal}")
    return {
        "name": name, "kind": kind, "trait": trait, "a_hero": article(f"{trait} {kind}"), "place": place, "Place": place, "spot": spot, "spot2": spot2,
        "they": they, "They": they.capitalize(), "them": them, "their": their, "Their": their.capitalize(),
        "friend": friend, "Friend": friend.capitalize(), "friend_a": friend_a, "friend_a_up": friend_a.capitalize(), "animal": animal,
        "animal2": animal2, "f_they": f_they, "F_they": f_they.capitalize(), "f_their": f_their,
        "thing": pick(rng, rng.sample(THINGS, 9)), "colour": pick(rng, rng.sample(COLOURS, 5)), "food": pick(rng, rng.sample(FOODS, 6)),
        "make": pick(rng, rng.sample(MAKES, 5)), "plant": pick(rng, rng.sample(PLANTS, 4)), "fear": pick(rng, rng.sample(FEARS, 4)),
        "relative": relative, "relative_they": "she" if relative.split()[-1] in ("mother", "grandmother", "aunt", "sister") else "he",
        "moral": pick(rng, MORALS),
    }


def story(rng, cast=None):
    """One story as a text of one to three paragraphs, and its cast."""
    cast = cast or make_cast(rng)
    plot = rng.choice(list(PLOTS))
    problem, scenes = PLOTS[plot]
    cast = {**cast, "problem": problem, "plot": plot}
    lines = [pick(rng, OPENINGS)]
    if rng.random() < 0.5:
        lines.append(pick(rng, HABITS))
    if rng.random() < 0.25:
        lines.append(pick(rng, WEATHER))
    breaks = {len(lines)} if rng.random() < 0.7 else set()
    for scene in scenes:
        if scene == "BAD" and rng.random() < 0.4:
            continue
        lines.append(pick(rng, SCENES[scene] if isinstance(scene, str) else scene))
    if rng.random() < 0.7:
        breaks.add(len(lines))
    lines += rng.sample(ENDINGS, 1 if rng.random() < 0.6 else 2)
    text = ""
    for i, line in enumerate(lines):
        text += ("\n\n" if i in breaks else " " if i else "") + expand(rng, line, cast)
    return text, cast


GREETINGS = [("[Hello|Hi|Good morning|Hey]!", "[Hello|Hi]! Shall I tell you a story?"), ("[Who are you|What can you do]?", "I am a small storyteller. I tell short stories about [children and animals|friends and animals]."),
             ("[Thank you|Thanks][!|.]", "You are welcome! [Do you want another story|Shall I tell you one more]?"), ("Good night[!|.]", "Good night! Sleep well and dream of {spot}.")]
REQUESTS = [
    "Tell me a story about {a_hero}.", "[Please tell|Tell] me a story about {a_kind}[| named {name}].", "Write a [short |]story about {name}.",
    "[Can|Could] you tell me a story about {a_hero} named {name}?", "I want a story about {a_kind} and {a_animal}.", "Tell me a [short |bedtime |]story[.|, please.]",
    "Tell me a story [with|about] a {colour} {thing}.",
]
SYSTEMS = ["You are a kind storyteller.", "You tell short stories for children.", "You are a helpful assistant."]
QUESTIONS = [
    ("Who is the story about?", "The story is about {name}, {a_hero}."), ("Where does {name} live?", "{name} lives {place}."),
    ("Who [helped|met] {name}?", "It was {friend_a}."), ("What did {name} learn?", "{name} learned that {moral}."), ("What is the name of the {kind}?", "The name of the {kind} is {name}."),
]


def conversation(rng):
    """A chat: a greeting, or a request and its story with questions after it."""
    messages = [{"role": "system", "content": pick(rng, SYSTEMS)}] if rng.random() < 0.35 else []
    cast = make_cast(rng)
    cast |= {"a_kind": article(cast["kind"]), "a_animal": article(cast["animal"])}

    def turn(user, assistant):
        messages.extend([{"role": "user", "content": user}, {"role": "assistant", "content": assistant}])

    if rng.random() < 0.15:
        turn(*(expand(rng, line, cast) for line in pick(rng, GREETINGS)))
    if rng.random() < 0.9 or not messages or messages[-1]["role"] == "system":
        request = expand(rng, pick(rng, REQUESTS), cast)
        turn(request, story(rng, cast)[0])
        if rng.random() < 0.4:
            turn(*(expand(rng, line, cast) for line in rng.choice(QUESTIONS)))
        if rng.random() < 0.2:
            turn(expand(rng, "[Tell me another one|Another story|One more], please[.|!]", cast), story(rng)[0])
    return messages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    for _ in range(arguments.count):
        print(story(generator)[0], end="\n\n---\n\n")
