"""Words of the tasks, kept here so that a task is the same on every machine and offline."""

from __future__ import annotations

NOUNS = tuple(
    """
    acorn actor album anchor angle animal answer ant apple apron arch arm army arrow art aunt
    baby badge bag baker ball banana band bank barn basin basket bath beach bean bear beard bed bee bell belt bench
    berry bicycle bird blanket boat bone book boot border bottle bowl box boy branch bread brick bridge broom brother
    brush bucket bullet bus bush butter button
    cabin cable cage cake camel camera camp candle cap captain car card carpet cart castle cat cave chain chair chalk
    cheese cherry chest chicken child church circle city clay clock cloth cloud coach coal coat coffee coin collar
    comb cook copper corn corner cotton cousin cow crab cream crow crown cup curtain cushion
    dad dancer daughter deck deer desk diamond dice dinner dish doctor dog doll donkey door dragon drawer dress drum
    duck dust
    eagle ear earth edge egg elbow elephant engine envelope eye
    face factory family fan farm farmer father feather fence field finger fire fish flag flame flower flute fly foot
    forest fork fountain fox frame friend frog fruit
    garden garlic gate ghost giant gift girl glass glove goat gold goose grain grape grass guitar gun
    hair hall hammer hand harbor hat hawk head heart hill honey hook horn horse hospital hotel house
    ice inch ink insect iron island
    jacket jar jaw jewel judge juice jungle
    kettle key king kitchen kite knee knife knight
    ladder lady lake lamb lamp leaf leather lemon letter library light lily lion lip lizard lock log
    magnet maid map marble market mask match meadow meat metal milk mill mirror monkey moon mother mountain mouse
    mouth mud museum mushroom
    nail name neck needle nest net night nose nurse nut
    oak ocean office oil onion orange oven owl ox
    paint palace pan paper park parrot path peach pearl pen pencil pepper piano picture pig pilot pin pipe plane plant
    plate plum pocket poet pond pony pool potato prince pump
    queen quilt rabbit radio rail rain rat ribbon rice ring river road robin rock roof room root rope rose ruler
    saddle sailor salt sand scarf school sea seed sheep shell ship shirt shoe shop silk silver sister skirt sky sleeve
    smoke snake snow soap sock soldier soup spider spoon spring square squirrel stable star station steam step stone
    storm street string sugar suit summer sun swan sword
    table tail tailor teacher temple tent thread throat throne thumb tiger tin toe tomato tongue tooth towel tower town
    train tray tree truck trumpet tunnel turtle
    uncle valley van vase village violin voice
    wagon wall water wave wheel whistle wind window wine wing winter wire wolf wood wool worm wrist yard
    """.split()  # noqa: SIM905 (435 quoted words would be harder to read)
)
"""Common nouns: keys of lists, names of variables. None stands twice."""

COMMON_WORDS = tuple(
    """
    able back best big black blue both call cold come cut dark deep down early easy even fast few fine first free full
    good great green half hard help high hold home hot keep kind large last late left long look low make many mean more
    most move much new next old once open own past play red rest right run same short show side slow small soft some
    stand start still strong sure take thin true try turn under warm well white whole wide wild work wrong young
    """.split()  # noqa: SIM905
)
"""Among the most frequent words of English, mostly one token in the vocabulary of any model."""

RARE_WORDS = tuple(
    """
    abseil acolyte aglet alembic anodyne aphid apiary argon aspic atoll auburn auspice azimuth balustrade barnacle
    basalt bauxite bobbin borax brocade bulwark burdock cadmium caftan caiman caliph calumny cantilever carapace
    carmine catarrh chaff chalice chervil chintz cinnabar cistern claret cochineal cockle conifer cormorant cowrie
    crampon crevasse crozier cutlass damask damson dinghy dirge dormouse dowel dulcimer eider elixir emery equerry
    ermine escarole fennel ferrule fetlock filigree flagon flotsam fulcrum gable gadfly galleon gannet garnet gasket
    gauntlet gazelle gherkin gibbon gimlet gneiss gooseberry gorse gourd gravel grouse gudgeon gypsum halberd halyard
    harrow heron hessian hillock hyssop ibex ingot isinglass jackdaw jasper jerkin juniper kelp kestrel kohlrabi
    lacquer lanolin lapwing larch lathe lichen limpet lintel lobelia locust lozenge lugger lupin macaw madder mallow
    mandolin marl marmot marzipan mastic mattock millet minaret mistral molasses monsoon mordant mullet nacelle
    narwhal newt nutmeg obelisk ocelot okapi osprey otter oxbow paddock palisade pantry parapet parsnip pelican
    pewter piccolo pinnace pipette plover poultice pumice quagmire quarto quiver ramekin rapier rhubarb rotunda
    rowan ruminant sable saffron samovar sandalwood scabbard schooner scullery sextant shale shamrock sickle skillet
    sorrel spandrel spigot spinet stoat sturgeon sumac sundial tabard tallow talon tamarind tansy tapir teasel thimble
    thistle thresher tinder topaz tourniquet treacle trellis truffle tundra turnip turpentine turret umber vellum
    verbena vetch viaduct vinegar vole walrus warbler weevil whelk wicket willow yarrow zephyr zinnia
    """.split()  # noqa: SIM905
)
"""Words that a text seldom holds: several tokens each, from the rare end of a vocabulary built by frequency."""
