"""Names of people that one name may be replaced by, and names that also mean something else."""

ALSO_WORDS = frozenset(
    (
        "ace al amber an april art august austin autumn baker bell bill bishop black blue bo bob bond brown bush "
        "carter charlotte chase chelsea cook cooper crystal dallas dawn dean drew earl ed english fay fisher florence "
        "fox frank gene georgia grace grant gray green grey hall harry hill holiday hope houston hunter iris ivy jack "
        "jackson jade jo jordan joy july june king kit lake law lee lily lincoln long lord love ma major mark martin "
        "mason max may mercy miles miller mo morgan nelson noble norman ok olive oz page paris park parker pat penny "
        "peter pierce pope porter price queen ray reed rex rich rob robin rocky rose ruby sage sam santiago scarlet "
        "shaw smith sterling stone sue summer sydney taylor turner val victor victoria violet wade walker ward "
        "washington west white will winter wood woods young"
    ).split()
)
"""Replacing these would change more than people: ordinary words, months, places."""

_NAMES = (
    "li ng ty vi wu xu yu amy ana ann ava ben cho dan eli eva gus ian ida jan jim joe kai kim leo liu liv lou luz meg "
    "mei mia nia noa ola pia ron roy tao ted tim tom uma wei yan zoe adam aldo alma anya axel beth carl cleo cruz "
    "dana diaz dora emil emma enzo erik evan ezra fang finn fynn gina greg gwen hana hugh hugo ines inga ivan jada "
    "jane john jose juan judy kate khan kira kyle lars lena liam lisa luca lucy luis lynn maya mila mina nina noah "
    "nora olga omar otto owen paul pete raya rosa ruth ryan sara sean sven tara theo toni vera yara zara zoya aarav "
    "adele ahmed aidan alice amara amina anton ariel boris bruno caleb carla cesar chloe clara clark colin craig "
    "daiki david davis diana elena elias emily ethan evans felix glenn hanna helen henry irene isaac jacob james "
    "jason jenna jerry jonas julia karen karin kevin klaus kovac laura layla leila lewis linda lopez lucas lucia "
    "mateo megan moore nadia naomi oscar pablo patel perez priya quinn rahul ralph ramon renee ricky riley rossi "
    "santi sarah silva simon sofia stein tanya tomas vance vijay wendy yusuf amelia anders andrea andrew astrid "
    "bianca blaine brenda bryant camila carmen cedric claire conrad damian daniel darren davide dennis dmitri eduard "
    "elaine elliot esther evelyn fatima fergus garcia gordon harold hassan hector helena ingrid isabel ismail jasper "
    "jensen jerome joanna johann jorgen joseph joshua julian kelvin kovacs lorena louisa lucile marcus marina martha "
    "mehmet melina miguel miriam muller nathan nicole olivia osborn philip quincy rafael ramona reggie regina renata "
    "rodney roland ronald rosado sander sergio sharon silvia simone sophia stefan stella steven sylvia tamara thomas "
    "tobias ulrich vargas vernon walter wilson xavier yvonne abigail adriana alberto anthony antonio barbara beatriz "
    "bernard brandon cameron camille carlota cecilia charles clarice clayton corinne cynthia deborah delgado desmond "
    "dorothy douglas edwards eleanor emanuel estella ezekiel felicia filippo fischer florian forrest gabriel gilbert "
    "harriet herbert ibrahim isadora jasmine jeffrey jessica johnson juliana justine kenneth klaudia larissa leonard "
    "leopold lorenzo luciana luciano lucinda malcolm mariana matilda maurice melissa michael miranda mohamed natalia "
    "natasha nikolai octavia ottilie patrick perkins phillip ramirez raymond rebecca ricardo roberta roberto rosalie "
    "russell sanchez santana santoro stephen susanna theresa tiffany tristan valerie vanessa vincent wallace william "
    "winston yolanda zachary adelaide alastair anderson angelica augustus benjamin bertrand brigitte campbell "
    "caroline catalina charlene clarence clifford cordelia courtney cristina dominick dominika emmanuel ernestin "
    "fernanda fernando franklin fredrick geoffrey gianluca giovanni giuliana gonzales gustavus harrison hernando "
    "humberto isabella jeremiah johannes jonathan josefine katarina kimberly leonardo lorraine magdalen marcello "
    "margaret marianne martinez mauricio meredith mitchell mohammed montague muhammad nathalie nicholas octavian "
    "patricia penelope petersen philippa prudence reginald reynolds roderick rosalind salvador stanford sullivan "
    "terrence thaddeus theodore thompson valencia valentin veronica vladimir whitaker winifred alejandro alexander "
    "alexandra alexandre anastasia annabelle augustine bartholom catherine celestine christian christina clementin "
    "constance cornelius dominique elizabeth esmeralda esperanza ferdinand francesca francisco frederick gabrielle "
    "genevieve guillermo gwendolyn henderson henrietta hernandez hildegard jacquelin josephine katherine leonhardt "
    "madeleine magnusson nathaniel nicholson priscilla rodriguez rosemarie sebastian sheffield stanislav stephanie "
    "sylvester valentina zimmerman kristoffer marguerite maximilian montgomery wilhelmina"
).split()

NAMES_BY_LENGTH: dict[int, tuple[str, ...]] = {
    length: tuple(name for name in _NAMES if len(name) == length) for length in set(map(len, _NAMES))
}
"""First and last names of many languages in lower case, by their number of letters; none of them in `ALSO_WORDS`."""
