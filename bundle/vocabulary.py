"""Our own lists of names and words, which fill the sentences that names.py and contexts.py make."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """Split at commas."""
    return tuple(" ".join(one.split()) for one in text.split(",") if one.strip())


FIRST_NAMES = words("""
Adam, Adrian, Agnes, Ahmed, Aisha, Alan, Albert, Alex, Alice, Alicia, Amanda, Amina, Amy, Andrea, Andrew,
Angela, Anita, Ann, Anna, Anthony, Antonio, Arthur, Astrid, Barbara, Beatrice, Ben, Benjamin, Bernard,
Betty, Bill, Bob, Boris, Brian, Bruno, Camille, Carla, Carlos, Carol, Caroline, Catherine, Charles,
Charlotte, Chen, Chloe, Chris, Christine, Claire, Clara, Claudia, Colin, Connor, Cynthia, Dan, Daniel,
David, Deborah, Denise, Dennis, Diana, Diego, Dmitri, Dominic, Donald, Dora, Doris, Dorothy, Edgar,
Edith, Edward, Elena, Eleanor, Elias, Elizabeth, Ella, Ellen, Elsa, Emil, Emily, Emma, Eric, Erika,
Ernest, Esther, Ethan, Eva, Evelyn, Fatima, Felix, Fiona, Florence, Frances, Francis, Frank, Fred, Freya,
Gabriel, Gareth, Gary, George, Gerald, Giulia, Gloria, Grace, Graham, Greta, Guido, Hamid, Hannah, Hans,
Harold, Harry, Hassan, Heather, Helen, Henry, Hiroshi, Howard, Hugo, Ian, Ibrahim, Igor, Ines, Ingrid,
Irene, Iris, Isaac, Isabel, Ivan, Jack, Jacob, James, Jane, Janet, Jasmine, Jason, Jean, Jeff, Jennifer,
Jenny, Jessica, Jim, Joan, Joe, John, Jonas, Jordan, Jose, Joseph, Joyce, Juan, Judith, Julia, Julian,
Juliet, June, Karen, Karim, Kate, Katherine, Keith, Kelly, Ken, Kenji, Kevin, Kim, Klaus, Laila, Lara,
Larry, Laura, Lea, Leah, Lena, Leo, Leon, Lewis, Liam, Lily, Linda, Lisa, Liu, Lola, Louis, Louise,
Lucas, Lucia, Lucy, Luis, Luke, Lydia, Magnus, Malik, Marco, Marcus, Margaret, Maria, Marie, Mario, Mark,
Martha, Martin, Mary, Matthew, Maya, Mei, Michael, Michelle, Miguel, Mike, Miriam, Mohamed, Mona, Monica,
Nadia, Nancy, Naomi, Natalie, Nathan, Neil, Nicholas, Nick, Nicole, Nina, Noah, Nora, Olga, Oliver,
Olivia, Omar, Oscar, Pablo, Pamela, Patricia, Patrick, Paul, Paula, Pedro, Peter, Philip, Pierre, Priya,
Rachel, Rafael, Rahul, Ralph, Raymond, Rebecca, Richard, Rita, Robert, Roberto, Robin, Roger, Ronald,
Rosa, Rose, Roy, Ruth, Ryan, Sally, Sam, Samuel, Sandra, Sara, Sarah, Sasha, Sean, Sebastian, Sergei,
Sharon, Silvia, Simon, Sofia, Sonia, Sophie, Stefan, Stella, Stephen, Steve, Stuart, Susan, Svetlana,
Sven, Sylvia, Takeshi, Tamara, Tanya, Tara, Ted, Teresa, Theo, Thomas, Tim, Tina, Tobias, Tom, Tony,
Ursula, Valerie, Vera, Victor, Victoria, Vincent, Viola, Walter, Wendy, William, Yasmin, Yuki, Yusuf,
Zara, Zoe""")

SURNAMES = words("""
Abbott, Adams, Ahmad, Alvarez, Andersen, Anderson, Atkins, Bailey, Baker, Barker, Bauer, Becker, Bell,
Bennett, Berg, Bianchi, Bishop, Black, Brooks, Burke, Burns, Butler, Campbell, Carter, Castro, Chapman,
Clark, Cohen, Cole, Collins, Cooper, Costa, Cox, Davies, Davis, Diaz, Dixon, Dubois, Duncan, Dunn,
Edwards, Ellis, Evans, Fernandez, Fischer, Fisher, Fletcher, Foster, Fox, Gibson, Gomez, Gonzalez,
Gordon, Grant, Gray, Green, Griffin, Gupta, Hall, Hansen, Harper, Harris, Harrison, Hayes, Hill,
Hoffmann, Holmes, Hughes, Hunt, Hunter, Ivanov, Jackson, Jansen, Jenkins, Johnson, Jones, Kelly, Kennedy,
Khan, King, Klein, Knight, Kowalski, Kumar, Lambert, Larsen, Lawrence, Lee, Lewis, Lopez, Lloyd,
Marshall, Martinez, Mason, Mehta, Meyer, Mitchell, Moore, Moreau, Morgan, Morris, Murphy, Murray,
Nakamura, Nelson, Newman, Nguyen, Novak, Olsen, Ortiz, Owen, Palmer, Park, Parker, Patel, Perez, Perry,
Peters, Petrov, Phillips, Porter, Powell, Price, Ramirez, Reed, Reid, Reynolds, Richards, Richter,
Rivera, Roberts, Robinson, Rogers, Romano, Rossi, Russell, Ryan, Sanchez, Sanders, Sato, Schmidt,
Schneider, Scott, Shaw, Silva, Simpson, Singh, Spencer, Stevens, Stewart, Stone, Suzuki, Tanaka, Taylor,
Thompson, Tran, Turner, Wagner, Walker, Wallace, Walsh, Wang, Ward, Watson, Weber, Webb, Wells, West,
White, Williams, Wilson, Wong, Wood, Wright, Yamamoto, Young, Zhang""")

PLACES = words("""
Aberdeen, Africa, Alaska, Algeria, Amsterdam, Argentina, Arizona, Asia, Athens, Atlanta, Auckland,
Australia, Austria, Baltimore, Bangkok, Barcelona, Bath, Beijing, Belfast, Belgium, Belgrade, Bergen,
Berlin, Birmingham, Bolivia, Bombay, Bordeaux, Boston, Brazil, Bremen, Brighton, Brisbane, Bristol,
Britain, Brooklyn, Brussels, Bucharest, Budapest, Buenos Aires, Bulgaria, Cairo, Calcutta, California,
Cambridge, Canada, Cape Town, Cardiff, Chicago, Chile, China, Cologne, Colombia, Colorado, Copenhagen,
Cornwall, Costa Rica, Croatia, Cuba, Dallas, Delhi, Denmark, Denver, Detroit, Dortmund, Dresden, Dublin,
Edinburgh, Egypt, England, Estonia, Ethiopia, Europe, Exeter, Finland, Florence, Florida, France,
Frankfurt, Geneva, Genoa, Georgia, Germany, Ghana, Glasgow, Granada, Graz, Greece, Greenland, Hamburg,
Hanoi, Hanover, Havana, Helsinki, Hiroshima, Holland, Hong Kong, Houston, Hungary, Iceland, India,
Indonesia, Iran, Iraq, Ireland, Israel, Istanbul, Italy, Jakarta, Jamaica, Japan, Jerusalem,
Johannesburg, Kansas, Kenya, Kiev, Korea, Kyoto, Lagos, Latvia, Lebanon, Leeds, Leicester, Leipzig, Lima,
Lisbon, Liverpool, London, Los Angeles, Luxembourg, Lyon, Madrid, Malaga, Malaysia, Malta, Manchester,
Manila, Marseille, Melbourne, Mexico, Miami, Michigan, Milan, Minnesota, Montreal, Morocco, Moscow,
Mumbai, Munich, Nairobi, Naples, Nepal, Netherlands, Nevada, New Delhi, New Orleans, New York, New
Zealand, Nice, Nigeria, North America, Norway, Nottingham, Ohio, Oregon, Osaka, Oslo, Ottawa, Oxford,
Pakistan, Palermo, Paris, Peru, Philadelphia, Pisa, Plymouth, Poland, Portland, Porto, Portugal, Prague,
Quebec, Rio, Rome, Romania, Rotterdam, Russia, Salzburg, San Diego, San Francisco, Santiago, Scotland,
Seattle, Senegal, Seoul, Serbia, Seville, Shanghai, Sheffield, Siberia, Sicily, Singapore, Slovakia,
Slovenia, South Africa, South America, Spain, Stockholm, Stuttgart, Sudan, Sweden, Switzerland, Sydney,
Syria, Taipei, Tanzania, Tehran, Texas, Thailand, Tokyo, Toledo, Toronto, Toulouse, Trieste, Tunisia,
Turin, Turkey, Tuscany, Uganda, Ukraine, United Kingdom, United States, Utah, Valencia, Vancouver,
Venezuela, Venice, Vermont, Verona, Vienna, Vietnam, Wales, Warsaw, Washington, Wellington, Wisconsin,
York, Yorkshire, Zagreb, Zurich""")

ORGANISATIONS = words("""
Adidas, Airbus, Amnesty International, Amazon, Apple, Arsenal, Audi, BBC, BMW, Barcelona University,
Bayer, Bell Labs, Boeing, Bosch, British Airways, Cambridge University, Carrefour, Chelsea, Cisco,
Citibank, CNN, Coca-Cola, Columbia University, Daimler, Dell, Deutsche Bank, Disney, Dow Jones, European
Union, Facebook, Federal Reserve, Fiat, Ford, General Electric, General Motors, Goldman Sachs, Google,
Greenpeace, Harvard University, Heinz, Honda, HSBC, Huawei, Hugging Face, IBM, IKEA, Intel, Kellogg,
Lego, Lufthansa, Manchester United, Mastercard, McDonald's, Microsoft, Ministry of Health, NASA, NATO,
Nestle, Netflix, New York Times, Nike, Nintendo, Nokia, Nvidia, OpenAI, Oracle, Panasonic, PayPal, Pepsi,
Pfizer, Philips, Porsche, Princeton University, Procter and Gamble, Real Madrid, Red Cross, Renault,
Reuters, Rolls-Royce, Royal Society, Ryanair, SAP, Samsung, Shell, Siemens, Sony, Spotify, Stanford
University, Starbucks, Supreme Court, Tesco, Tesla, Toshiba, Toyota, Twitter, UNESCO, UNICEF, United
Nations, University of Chicago, Visa, Vodafone, Volkswagen, Volvo, Wall Street Journal, Walmart,
Wikipedia, World Bank, World Health Organization, Yahoo, Yale University, YouTube""")

# Capitalised, and no name of a person, place or organisation.
CAPITALISED = words("""
I, I'm, I'll, I've, I'd, Mr, Mrs, Ms, Miss, Dr, TV, OK, CD, DVD, PC, DNA, X-ray, T-shirt, T-shirts, God,
Internet, Bible, January, February, March, April, May, June, July, August, September, October, November,
December, Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Mondays, Tuesdays, Wednesdays,
Thursdays, Fridays, Saturdays, Sundays, Christmas, Easter, Halloween, English, French, German, Spanish,
Italian, Japanese, Chinese, Russian, Latin, Greek, Dutch, Portuguese, Swedish, Arabic, Hebrew, Korean,
Turkish, Polish, American, Americans, British, Canadian, Australian, European, Asian, African, Indian,
Irish, Scottish, Swiss, Austrian, Brazilian, Mexican, Catholic, Christian, Muslim, Buddhist, Jewish,
Germans, Europeans, Canadians, Christians, Santa, Mom, Dad, Esperanto, Thanksgiving, Olympic""")

# What fills the slots of contexts.py.
TIMES = words("""
one o'clock, two o'clock, half past three, a quarter to four, five o'clock, noon, midnight, quarter past
seven, half past seven, 7:15, 8:20, 9:30, 11:05, 14:00, 16:40, 18:25, 20:10, seven in the morning, ten in
the evening""")
DAYS = words("""
Monday, Tuesday, Wednesday, Friday, Saturday, Sunday, tomorrow, next week, the weekend""")
NUMBERS = words(
    "two, three, four, five, six, seven, nine, eleven, twelve, fifteen, twenty, thirty, 14, 25, 60, 180"
)
COLOURS = words("""
red, blue, green, yellow, white, black, brown, orange, purple, grey, pink""")
JOBS = words("""
carpenter, plumber, dentist, lawyer, baker, pilot, gardener, journalist, librarian, electrician, farmer,
waiter, architect, painter, butcher, translator, photographer, firefighter, driver, tailor""")
WORKPLACES = words("""
a bakery, a bank, the town hall, a car factory, the harbour, a law firm, a primary school, the airport, a
bookshop, a nursery, the zoo, a small restaurant, the fire station, a supermarket, the university, a
bicycle shop, the theatre""")
THINGS = words("""
umbrella, wallet, laptop, passport, scarf, camera, guitar, watch, lamp, ring, notebook, jacket, suitcase,
teapot, radio, hammer, vase, blanket, phone, map""")
SPOTS = words("""
on the kitchen table, under the bed, in the top drawer, behind the sofa, in the car, on the shelf, in the
cellar, at the office, in the wardrobe, beside the lamp, in the garage, on the balcony, in the garden
shed, on the train""")
FOODS = words("""
potatoes, tomatoes, onions, lemons, carrots, eggs, mushrooms, pears, peaches, cherries, plums, oranges,
grapes, cucumbers, peppers, sausages""")
SUBJECTS = words("""
physics, history, biology, music, medicine, economics, chemistry, geography, philosophy, art,
engineering, French, Spanish, Latin""")
ANIMALS = words("""
cat, dog, horse, rabbit, parrot, pony, hamster, goat, canary, tortoise""")
PET_NAMES = words(
    "Rex, Bella, Coco, Luna, Simba, Felix, Oscar, Daisy, Pepper, Toby, Molly, Rocky, Lucky, Ginger"
)
RELATIVES = words(
    "brother, sister, cousin, uncle, aunt, neighbour, friend, father, mother, grandfather, daughter, son"
)
HOBBIES = words("""
football, tennis, chess, the piano, the violin, basketball, the drums, golf, cards, hockey, the flute,
volleyball""")
REASONS = words("""
the heating is broken, the road is blocked, the singer has a cold, it rained all day, the ferry was full,
there was a power cut, the boss is on holiday, nobody had a key, the river was too high, the tickets were
sold out""")
DURATIONS = words("""
twenty minutes, half an hour, two hours, three days, a week, six weeks, ten minutes, an hour and a half,
four months, ninety minutes""")
PRICES = words(
    "four pounds, ten euros, twenty dollars, six pounds fifty, a hundred euros, fifteen dollars, two pounds"
)
BUILDINGS = words(
    "church, tower, castle, bridge, theatre, station, museum, school, lighthouse, library, harbour, mill"
)
