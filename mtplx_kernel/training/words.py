"""The words that fill the blanks of prompt templates."""

from __future__ import annotations


def _w(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


WORDS: dict[str, tuple[str, ...]] = {
    "animal": _w(
        "an otter, a heron, a snow leopard, a beetle, an octopus, a hedgehog, a camel, a wolf, "
        "a bat, a tortoise, a goose, a falcon, a whale, a squid, a donkey, an ant colony, a "
        "salmon, a fox, a parrot, a moose, a gecko, a crab, a swallow, an elephant, a badger, a "
        "kangaroo, a penguin"
    ),
    "science": _w(
        "photosynthesis, magnetism, plate tectonics, natural selection, friction, evaporation, "
        "sound, the water cycle, electric current, gravity, fermentation, erosion, static "
        "electricity, DNA, the greenhouse effect, nuclear fusion, refraction, osmosis, "
        "volcanoes, antibodies, entropy, the immune system, comets, black holes, earthquakes, "
        "rainbows, tides, lightning, enzymes, vaccines, semiconductors, batteries, radio waves, "
        "glaciers, coral reefs, the ozone layer, pollination, crystals, superconductors, "
        "eclipses, digestion, hormones, neurons, sleep"
    ),
    "history": _w(
        "the Silk Road, the printing press, the fall of Constantinople, the Bronze Age, the "
        "Vikings, the Industrial Revolution, the Roman aqueducts, the Black Death, the Ming "
        "dynasty, Carthage, the Suez Canal, the Space Race, the Great Fire of London, the Meiji "
        "era, the Inca roads, the Library of Alexandria, the telegraph, the Berlin Wall, the "
        "Ottoman Empire, Mesopotamia, the steam engine, the Hanseatic League, the Gold Rush, "
        "the Magna Carta, the Renaissance"
    ),
    "country": _w(
        "Portugal, Kenya, Peru, Norway, Japan, Vietnam, Canada, Morocco, Chile, India, Greece, "
        "Egypt, Finland, Mexico, Indonesia, Turkey, Iceland, Ghana, Poland, New Zealand, "
        "Thailand, Cuba, Ireland, South Korea, Switzerland, Nepal, Argentina, Ethiopia, Jordan, "
        "the Philippines"
    ),
    "city": _w(
        "Lisbon, Nairobi, Lima, Oslo, Kyoto, Hanoi, Toronto, Fez, Prague, Mumbai, Athens, "
        "Cairo, Helsinki, Oaxaca, Istanbul, Dublin, Kraków, Wellington, Seoul, Zürich, Lagos, "
        "Austin, Rome, Vienna, Melbourne, Leeds, Denver, Bruges, Porto, Seville"
    ),
    "hobby": _w(
        "bird watching, pottery, chess, knitting, climbing, baking bread, sailing, woodworking, "
        "judo, photography, gardening, running, playing the cello, calligraphy, astronomy, "
        "origami, fishing, cycling, juggling, painting, beekeeping, learning the guitar, "
        "swimming, sewing, yoga, surfing"
    ),
    "food": _w(
        "lentil soup, mushroom risotto, pancakes, apple pie, fried rice, tomato sauce, hummus, "
        "tacos, a vegetable curry, banana bread, potato salad, dumplings, an omelette, "
        "sourdough, pesto, chili, roast chicken, fish stew, pickles, granola, noodle soup, "
        "cheesecake, stuffed peppers"
    ),
    "job": _w(
        "a nurse, an electrician, a librarian, a train driver, a chef, a lawyer, a beekeeper, a "
        "tailor, an architect, a data analyst, a teacher, a pilot, a carpenter, a translator, a "
        "biologist, a plumber, a journalist, a firefighter, a software engineer, a midwife, a "
        "sound technician"
    ),
    "object": _w(
        "a brass key, an old compass, a broken watch, a red umbrella, a music box, a wooden "
        "boat, a cracked mirror, a library card, a glass marble, a silver whistle, a torn map, "
        "a lantern, a typewriter, a tin of buttons, a rusty bicycle, a clay pot, a pair of "
        "boots, a paper crane"
    ),
    "place": _w(
        "the museum, the harbour, the village school, the north bridge, the bakery, the city "
        "library, the train station, the botanical garden, the town hall, the swimming pool, "
        "the market square, the community centre, the observatory, the ferry terminal, the "
        "clinic, the old theatre"
    ),
    "setting": _w(
        "a mountain hut, a space station, a fishing village, a night train, a desert town, a "
        "castle, an abandoned mine, a floating market, a snowed-in airport, a hospital ward, an "
        "island, a zoo, a busy kitchen, a forest of giant trees, a city under the sea, a small "
        "bookshop, a farm"
    ),
    "person": _w(
        "Maria, Tomasz, Aisha, Ken, Olga, Pedro, Ingrid, Samir, Chloe, Wei, Fatima, Jonas, "
        "Priya, Liam, Yuki, Nadia, Carlos, Hannah, Omar, Elena, Ravi, Sofia, Daniel, Amara, "
        "Viktor, Zoe"
    ),
    "feeling": _w(
        "nervous, bored, proud, lonely, angry, grateful, tired, curious, jealous, hopeful, "
        "confused, homesick, relieved, overwhelmed, embarrassed, excited, guilty, calm"
    ),
    "problem": _w(
        "my neighbour plays loud music, I keep forgetting names, I cannot fall asleep, my "
        "laptop is slow, my houseplant has yellow leaves, I am always late, my cat scratches "
        "the sofa, I hate my job, my friend cancelled our trip, I spend too much money, I have "
        "to give a speech, my back hurts, my team misses every deadline, my bread does not "
        "rise, I argue with my brother, I feel stuck, I do not like my haircut, my phone "
        "battery dies by noon, I am afraid of flying, I eat too fast"
    ),
    "goal": _w(
        "run ten kilometres, read more books, save money for a car, learn Spanish, drink less "
        "coffee, find a new flat, sleep better, write a novel, get a promotion, eat more "
        "vegetables, meditate, stop procrastinating, make new friends, learn to code, pass a "
        "maths exam, build a bookshelf"
    ),
    "event": _w(
        "a birthday party, a wedding, a school trip, a job fair, a book club, a charity run, a "
        "picnic, a team meeting, a family reunion, a film night, a garden sale, a science fair, "
        "a concert"
    ),
    "product": _w(
        "a rain jacket, a coffee grinder, a desk lamp, a travel mug, a pair of headphones, a "
        "backpack, an electric bike, a garden hose, a board game, a phone case, a mattress, a "
        "solar charger"
    ),
    "language": _w(
        "French, Spanish, German, Italian, Portuguese, Dutch, Japanese, Swedish, Polish, Turkish"
    ),
    "code": _w(
        "Python, JavaScript, C, Java, Go, Rust, TypeScript, Ruby, C++, Bash, SQL, Kotlin, PHP, "
        "Swift"
    ),
    "task": _w(
        "reverses a string, counts the vowels in a text, finds the largest number in a list, "
        "checks whether a number is prime, merges two sorted lists, removes duplicates from a "
        "list, computes the factorial of a number, counts words in a file, checks for a "
        "palindrome, converts Celsius to Fahrenheit, sorts a list of names by length, finds "
        "common elements, prints the first n Fibonacci numbers, validates an email address, "
        "flattens a nested list, groups words by first letter, computes the mean and the "
        "median, rotates a matrix, finds the longest word in a sentence, parses a line of CSV, "
        "generates a random password, computes the greatest common divisor, implements binary "
        "search, converts a number to binary, counts how often each letter occurs, splits a "
        "list into chunks, capitalises each word, reads a JSON file, adds two matrices, "
        "simulates rolling two dice, computes compound interest"
    ),
    "concept": _w(
        "recursion, a hash table, a linked list, inheritance, a closure, a race condition, unit "
        "testing, version control, an index in a database, a REST API, garbage collection, a "
        "decorator, caching, type checking, asynchronous code, a stack and a queue, exceptions, "
        "big-O notation, a pointer, dependency injection, regular expressions, a mutex, a "
        "generator, floating point numbers"
    ),
    "maths": _w(
        "fractions, percentages, prime numbers, the Pythagorean theorem, probability, "
        "logarithms, sets, linear equations, vectors, derivatives, negative numbers, averages, "
        "angles, permutations"
    ),
    "plural": _w(
        "renewable energy sources, musical instruments, kitchen tools, board games, ocean "
        "animals, famous rivers, healthy snacks, programming languages, indoor plants, winter "
        "sports, spices, card games, African capitals, gifts for a teacher, icebreaker "
        "questions, dog breeds, trees, ways to save water, study habits, small talk topics, "
        "museums, moons, inventions, fabrics, stretching exercises, science projects for "
        "children, weekend trips, names for a cat, fruits"
    ),
    "abstract": _w(
        "patience, friendship, the sea, autumn, courage, silence, time, home, memory, luck, "
        "rain, hope, curiosity, change, music, work, childhood, forgiveness, winter, the moon, "
        "freedom, trust"
    ),
    "technology": _w(
        "the internet, a search engine, GPS, a touchscreen, Wi-Fi, a 3D printer, an electric "
        "motor, a microwave oven, a refrigerator, encryption, a neural network, an operating "
        "system, a camera, a solar panel, a wind turbine, a telescope, an elevator, a jet "
        "engine, a bar code, a compiler"
    ),
    "style": _w(
        "friendlier, more formal, shorter, simpler, more persuasive, more polite, more "
        "exciting, more neutral, more playful, clearer, more confident, warmer"
    ),
    "audience": _w(
        "a child, a beginner, a busy manager, a grandparent, a new student, an expert in "
        "another field, a tourist, a teenager, someone in a hurry, a room full of engineers"
    ),
    "genre": _w(
        "mystery, fairy tale, science fiction, adventure, comedy, ghost story, fable, romance, "
        "western"
    ),
    "label": _w(
        "positive or negative, urgent or not urgent, question or statement, formal or informal, "
        "sport or politics or science, complaint or praise or request, fact or opinion"
    ),
    "day": _w("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "month": _w("January, March, April, June, August, September, November, December"),
    "number": _w("3, 4, 5, 6, 7, 8, 10, 12"),
    "big": _w("17, 24, 36, 48, 63, 85, 96, 120, 144, 175, 230, 312, 450, 728"),
    "small": _w("2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15"),
    "price": _w("4.50, 7.25, 12, 18, 24.90, 35, 60, 99, 140, 250"),
    "word": _w(
        "resilient, ambiguous, to borrow, although, a bargain, fluent, to hesitate, ancient, a "
        "shortcut, reluctant, to persuade, a habit, generous, to postpone, brittle, a rumour, "
        "eager, to wander"
    ),
    "sentence": (
        "The children was playing in the garden when it start to rain.",
        "We has bought too many apples, so we is making a pie.",
        "I look forward to hear from you about the apartment.",
        "The old dog sleeps by the stove and dreams of rabbits.",
        "Could you please send me the report before lunch?",
        "She opened the window because the room smelled of smoke.",
        "He don't know where did he put his keys.",
        "Our train leaves at six, and we have not packed yet.",
        "The soup was good, but the bread was a little dry.",
        "If I would have known, I would have come earlier.",
        "The meeting was moved to next week by the director.",
        "Nobody in the office have seen the new printer working.",
        "A small lamp burned in the kitchen all night long.",
        "Its a pity that the shop close so early on weekends.",
        "The mountain was covered in snow, and the lake was frozen.",
    ),
    "snippet": (
        "def total(prices):\n    sum = 0\n    for p in prices:\n        sum += p\n    return sum",
        "def is_even(n):\n    if n % 2 == 0:\n        return True\n    else:\n        return False",
        "function greet(name) {\n  return 'Hello, ' + name + '!';\n}",
        "names = ['Ann', 'Bo', 'Cy']\nfor i in range(len(names)):\n    print(i, names[i])",
        "def read(path):\n    f = open(path)\n    data = f.read()\n    return data",
        "SELECT name, age FROM users WHERE age > 30 ORDER BY name;",
        "def fact(n):\n    return n * fact(n - 1)",
        "const doubled = [];\nfor (let i = 0; i < xs.length; i++) {\n  doubled.push(xs[i] * 2);\n}",
        "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y",
        "def find(items, wanted):\n    for i in range(1, len(items)):\n        if "
        "items[i] == wanted:\n"
        "            return i\n    return -1",
        "int max(int a, int b) {\n    return a > b ? a : b;\n}",
        "words = text.split(' ')\ncounts = {}\nfor w in words:\n    counts[w] = counts[w] + 1",
        "import random\n\ndef roll():\n    return random.randint(0, 6)",
        "func area(w float64, h float64) float64 {\n    return w * h\n}",
        "squares = []\nfor n in range(10):\n    squares.append(n ** 2)",
    ),
    "fact_sentence": (
        "{place} in {city} will be closed from {day} until {day} because of repairs.",
        "{person} has worked there as {job} for {small} years and likes the early shift.",
        "Tickets cost {price} euros and can be bought online or at the entrance.",
        "More than {big} people came to {event} last {month}, twice as many as the year before.",
        "The team compared {technology} with older solutions and found it cheaper to run.",
        "Visitors are asked to leave {object} at the front desk.",
        "{person} said that the plan would take at least {number} months and cost more "
        "than expected.",
        "In {country}, {hobby} has become popular among people over sixty.",
        "A local group offers free lessons in {hobby} every {day} evening.",
        "The new rules about {science} in school books start in {month}.",
        "Critics say that the idea is too expensive, but most neighbours support it.",
        "The kitchen serves {food} and coffee, and everything is made in the morning.",
        "Researchers at the university studied {science} for {small} years before they published.",
        "{person} found {object} behind {place} and took it to the police.",
        "The weather on {day} was cold and windy, so the start was moved by two hours.",
        "Nobody was hurt, and the fire was out within {big} minutes.",
        "Children under {small} may come in for free if they are with an adult.",
        "The book tells the history of {history} through the letters of one family.",
    ),
}
