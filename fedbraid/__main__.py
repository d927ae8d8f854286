from fedbraid.cli import main

main()
