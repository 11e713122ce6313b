from quire_server import main

main()
